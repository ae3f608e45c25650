"""Parts of bench/mesh.py."""
