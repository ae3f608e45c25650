"""Parts of `bench/workers.py`."""
