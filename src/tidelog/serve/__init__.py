"""One server in several processes: the owner of the log, and fronts that have connections."""
