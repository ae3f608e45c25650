"""Pages of the documentation that the program writes about itself."""
