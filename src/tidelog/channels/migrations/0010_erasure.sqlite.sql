-- What was erased of channels, and what is still to be erased.

-- A message; or all messages of a channel up to one, then `message` is 0; or what an actor wrote, then `stream`
-- is what the streams of its app begin with. Rows stay: the lake learns from them what to forget. Steps: asked
-- for, emptied, erased.
CREATE TABLE channels_erasure (
  stream       TEXT NOT NULL,
  actor        TEXT NOT NULL,
  message      INTEGER NOT NULL,
  through      INTEGER NOT NULL,
  searched     INTEGER NOT NULL,
  step         INTEGER NOT NULL,
  requested_at INTEGER NOT NULL,
  requested_by TEXT NOT NULL,
  reason       TEXT NOT NULL,
  seal         BLOB,
  PRIMARY KEY (stream, actor, message)
) STRICT, WITHOUT ROWID;

CREATE INDEX channels_erasure_step ON channels_erasure (step) WHERE step < 2;
