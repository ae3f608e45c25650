"""The HTTP and WebSocket runtime: one port, one fan-out."""
