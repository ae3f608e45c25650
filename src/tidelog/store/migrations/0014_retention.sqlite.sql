-- How far retention has come along the log, so that it goes on from there.

CREATE TABLE retention (
  name    TEXT PRIMARY KEY,
  through INTEGER NOT NULL,
  seal    BLOB
) STRICT, WITHOUT ROWID;
