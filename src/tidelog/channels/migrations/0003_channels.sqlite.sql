-- Channels: what a channel remembers of itself, its messages, and which versions a message has.

CREATE TABLE channels_channel (
  stream         TEXT PRIMARY KEY,
  epoch          INTEGER NOT NULL,
  history_serial INTEGER NOT NULL,
  history_floor  INTEGER NOT NULL,
  replay_floor   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE channels_message (
  message        INTEGER PRIMARY KEY,
  stream         TEXT NOT NULL,
  history_serial INTEGER NOT NULL,
  published_at   INTEGER NOT NULL,
  is_open        INTEGER NOT NULL,
  size_bytes     INTEGER NOT NULL,
  through        INTEGER NOT NULL,
  state          BLOB,
  base           BLOB
) STRICT;

CREATE UNIQUE INDEX channels_message_history ON channels_message (stream, history_serial);

CREATE TABLE channels_version (
  message      INTEGER NOT NULL,
  committed_id INTEGER NOT NULL,
  PRIMARY KEY (message, committed_id)
) STRICT, WITHOUT ROWID;

-- Receipts end with the version they name; this is how they are found.
CREATE INDEX dedupe_committed ON dedupe (committed_id) WHERE scope >= 'channels/' AND scope < 'channels0';
