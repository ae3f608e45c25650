"""Reading the store from outside: where it is, the log as a source of Spark, and its relations."""
