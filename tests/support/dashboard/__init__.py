"""A server with traffic, and the browser that looks at it."""
