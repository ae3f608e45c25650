"""Clients of the mesh daemon of this machine."""
