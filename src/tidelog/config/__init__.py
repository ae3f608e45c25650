"""All that an operator can set, and what must be set before a server may listen."""
