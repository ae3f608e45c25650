"""Two engines behind one narrow interface: SQLite and PostgreSQL."""
