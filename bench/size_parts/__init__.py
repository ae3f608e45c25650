"""The figures of `bench/size.py`, a module for each surface."""
