"""SQLite files and packaged statements."""
