-- An id is its sender's: once the broker has forgotten one, another member may use it (mesh 8.1).

-- The view, and the triggers that go with the table, are made again where search is wanted.
DROP VIEW IF EXISTS inbox_text;

CREATE TABLE inbox_by_sender (
  id                TEXT PRIMARY KEY,
  client_message_id TEXT NOT NULL,
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
  mention           INTEGER NOT NULL DEFAULT 0,
  UNIQUE (client_message_id, sender_pubkey, mesh)
);

INSERT INTO inbox_by_sender SELECT * FROM inbox ORDER BY received_at, id;
DROP TABLE inbox;
ALTER TABLE inbox_by_sender RENAME TO inbox;

CREATE INDEX inbox_received_at ON inbox (received_at, id);
CREATE INDEX inbox_topic ON inbox (topic);
CREATE INDEX inbox_sender ON inbox (sender_pubkey);

-- Ids of rows that retention removed. Of those that the first version removed nobody noted whose they were:
-- their sender and mesh are empty.
CREATE TABLE inbox_seen_by_sender (
  client_message_id TEXT NOT NULL,
  sender_pubkey     TEXT NOT NULL,
  mesh              TEXT NOT NULL,
  received_at       INTEGER NOT NULL,
  PRIMARY KEY (client_message_id, sender_pubkey, mesh)
) WITHOUT ROWID;

INSERT INTO inbox_seen_by_sender SELECT client_message_id, '', '', received_at FROM inbox_seen;
DROP TABLE inbox_seen;
ALTER TABLE inbox_seen_by_sender RENAME TO inbox_seen;
CREATE INDEX inbox_seen_received_at ON inbox_seen (received_at);
