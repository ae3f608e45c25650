-- Sync: which events belong to a partition, snapshots, archived bodies, and the model version.

CREATE TABLE sync_event_partitions (
  partition    TEXT NOT NULL,
  committed_id INTEGER NOT NULL,
  PRIMARY KEY (partition, committed_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE sync_snapshots (
  partition     TEXT PRIMARY KEY,
  state         BLOB NOT NULL,
  committed_id  INTEGER NOT NULL,
  created_at    INTEGER NOT NULL,
  model_version INTEGER NOT NULL,
  digest        BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE sync_events_archive (
  committed_id INTEGER PRIMARY KEY,
  body         BLOB NOT NULL
) STRICT;

CREATE TABLE sync_settings (
  name  TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The relations of the protocol (sync 16) under the names operators know.

CREATE VIEW sync_events AS
SELECT l.committed_id, l.entity AS id, l.actor AS client_id,
       json_extract(CAST(coalesce(l.body, a.body) AS TEXT), '$.partitions') AS partitions,
       json_extract(CAST(coalesce(l.body, a.body) AS TEXT), '$.event') AS event,
       l.committed_at AS status_updated_at
FROM log l LEFT JOIN sync_events_archive a USING (committed_id) WHERE l.stream = 'sync';

CREATE VIEW sync_event_ids AS
SELECT key AS id, fingerprint AS hash, committed_id, first_seen_at AS status_updated_at
FROM dedupe WHERE scope = 'sync';

CREATE VIEW sync_meta AS
SELECT head.committed_id AS last_committed_id, s.value AS model_version
FROM head LEFT JOIN sync_settings s ON s.name = 'model_version';
