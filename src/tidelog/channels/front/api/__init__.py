"""The HTTP API of channels, and the documents that tell of it and of the frames."""
