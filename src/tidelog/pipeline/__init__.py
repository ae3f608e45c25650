"""The pipeline: PySpark over the log, from entries to tables that prove and explain it."""
