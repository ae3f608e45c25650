"""Filling the lake: the table `log` from the store, and every other table from `log`."""
