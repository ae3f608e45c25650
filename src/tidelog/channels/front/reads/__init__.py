"""What is stored of channels, read for whoever asks."""
