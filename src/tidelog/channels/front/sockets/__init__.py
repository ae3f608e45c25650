"""Connections, their subscriptions, and what is delivered to them."""
