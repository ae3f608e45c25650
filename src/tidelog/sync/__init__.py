"""Offline first, authoritative, gap-free: drafts on the client, commits on the server."""
