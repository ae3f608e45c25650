"""Parts of bench/neighbour.py."""
