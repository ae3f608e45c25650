"""What commands share: options, the running server and its administration, progress."""
