"""The seam between the halves of a server."""
