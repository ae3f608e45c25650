"""The commands, as tests run them."""
