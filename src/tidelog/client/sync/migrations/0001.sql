-- The sync client's own file: events in three states, snapshots, cursors.

-- "tdsc": what tells our files from those of other applications (tidelog.client.sync_store.APPLICATION_ID).
PRAGMA application_id = 0x74647363;

CREATE TABLE events (
  id                TEXT PRIMARY KEY,
  committed_id      INTEGER,
  type              TEXT NOT NULL,
  payload           TEXT NOT NULL,
  -- Members of the event besides type and payload; NULL if there are none, which is the rule.
  extra             TEXT,
  partitions        TEXT NOT NULL,
  client_id         TEXT NOT NULL,
  status            TEXT NOT NULL CHECK (status IN ('draft', 'committed', 'rejected')),
  draft_clock       INTEGER,
  created_at        INTEGER NOT NULL,
  status_updated_at INTEGER,
  reject_reason     TEXT,
  errors            TEXT,
  CHECK ((status = 'committed') = (committed_id IS NOT NULL))
) STRICT;

-- By the check above this is also the index of the committed rows.
CREATE UNIQUE INDEX events_committed ON events (committed_id) WHERE committed_id IS NOT NULL;

CREATE INDEX events_draft ON events (draft_clock, id) WHERE status = 'draft';

CREATE TABLE snapshots (
  partition     TEXT PRIMARY KEY,
  state         TEXT NOT NULL,
  committed_id  INTEGER NOT NULL,
  created_at    INTEGER NOT NULL,
  model_version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE cursors (
  partition    TEXT PRIMARY KEY,
  committed_id INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Partitions that have lost rows to pruning: without a snapshot they must be fetched again from 0.
CREATE TABLE pruned (
  partition TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
