"""`tidelog mesh`."""
