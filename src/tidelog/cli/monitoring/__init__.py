"""`tidelog top` and `tidelog monitoring`: watching a running server."""
