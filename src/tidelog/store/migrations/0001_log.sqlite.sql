-- The log, its head, the dedupe table and the last batch of each writer.

-- "tdlg": what tells our files from those of other applications (tidelog.store.sqlite.APPLICATION_ID).
PRAGMA application_id = 0x74646C67;

CREATE TABLE log (
  committed_id  INTEGER PRIMARY KEY,
  stream        TEXT NOT NULL,
  stream_serial INTEGER NOT NULL,
  surface       TEXT NOT NULL,
  kind          TEXT NOT NULL,
  entity        TEXT NOT NULL,
  ref           TEXT NOT NULL,
  actor         TEXT NOT NULL,
  committed_at  INTEGER NOT NULL,
  body          BLOB,
  data          BLOB,
  body_digest   BLOB NOT NULL,
  digest        BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX log_stream_serial ON log (stream, stream_serial);

CREATE TABLE head (
  only_row     INTEGER PRIMARY KEY CHECK (only_row = 1),
  log_id       TEXT NOT NULL,
  committed_id INTEGER NOT NULL,
  digest       BLOB NOT NULL,
  committed_at INTEGER NOT NULL
) STRICT;

CREATE TABLE dedupe (
  scope         TEXT NOT NULL,
  key           TEXT NOT NULL,
  committed_id  INTEGER,
  fingerprint   BLOB NOT NULL,
  owner         TEXT NOT NULL,
  outcome       BLOB NOT NULL,
  available     INTEGER NOT NULL,
  first_seen_at INTEGER NOT NULL,
  expires_at    INTEGER,
  PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX dedupe_expiry ON dedupe (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE writer (
  node         TEXT PRIMARY KEY,
  batch_id     BLOB NOT NULL,
  committed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
