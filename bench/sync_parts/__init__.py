"""The parts of `bench/sync.py`."""
