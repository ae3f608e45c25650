-- The daemon's inbox: what the broker delivered, each id once (mesh 8.5).

-- "tdib": what tells our files from those of other applications.
PRAGMA application_id = 0x74646962;

CREATE TABLE inbox (
  id                TEXT PRIMARY KEY,
  client_message_id TEXT NOT NULL UNIQUE,
  broker_message_id TEXT,
  mesh              TEXT NOT NULL,
  topic             TEXT,
  sender_pubkey     TEXT NOT NULL,
  sender_name       TEXT NOT NULL,
  -- text as TEXT, other bytes as BLOB
  body              TEXT,
  meta              TEXT,
  received_at       INTEGER NOT NULL,
  reply_to_id       TEXT,
  history_id        INTEGER,
  priority          TEXT,
  created_at        TEXT,
  mention           INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX inbox_received_at ON inbox (received_at, id);
CREATE INDEX inbox_topic ON inbox (topic);
CREATE INDEX inbox_sender ON inbox (sender_pubkey);

-- Ids of rows that retention removed: a late copy of them is still a copy.
CREATE TABLE inbox_seen (client_message_id TEXT PRIMARY KEY, received_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX inbox_seen_received_at ON inbox_seen (received_at);

-- When the file was last vacuumed, and the newest history_id that was stored.
CREATE TABLE inbox_state (key TEXT PRIMARY KEY, value INTEGER NOT NULL);
