-- Sync: which events belong to a partition, snapshots, archived bodies, and the model version.

CREATE TABLE tidelog.sync_event_partitions (
  partition    TEXT COLLATE "C" NOT NULL,
  committed_id BIGINT NOT NULL,
  PRIMARY KEY (partition, committed_id)
);

CREATE TABLE tidelog.sync_snapshots (
  partition     TEXT COLLATE "C" PRIMARY KEY,
  state         BYTEA NOT NULL,
  committed_id  BIGINT NOT NULL,
  created_at    BIGINT NOT NULL,
  model_version BIGINT NOT NULL,
  digest        BYTEA NOT NULL
);

CREATE TABLE tidelog.sync_events_archive (
  committed_id BIGINT PRIMARY KEY,
  body         BYTEA NOT NULL
);

CREATE TABLE tidelog.sync_settings (
  name  TEXT COLLATE "C" PRIMARY KEY,
  value BIGINT NOT NULL
);

-- The relations of the protocol (sync 16) under the names operators know. Partitions and
-- event are JSON as text, cut out of the body: PostgreSQL's JSON functions refuse an escaped U+0000,
-- which is legal in an event. No string of the body can hold the marks: its quotes are escaped.

CREATE SCHEMA IF NOT EXISTS sync;

CREATE VIEW sync.events AS
SELECT committed_id, id, client_id,
       substr(body, strpos(body, ',"partitions":[') + 14,
              strpos(body, '],"event":') - strpos(body, ',"partitions":[') - 13) AS partitions,
       left(substr(body, strpos(body, '],"event":') + 10), -1) AS event,
       status_updated_at
FROM (
  SELECT l.committed_id, l.entity AS id, l.actor AS client_id,
         convert_from(coalesce(l.body, a.body), 'UTF8') AS body, l.committed_at AS status_updated_at
  FROM tidelog.log l LEFT JOIN tidelog.sync_events_archive a USING (committed_id)
  WHERE l.stream = 'sync'
) AS stored;

CREATE VIEW sync.event_partitions AS SELECT partition, committed_id FROM tidelog.sync_event_partitions;

CREATE VIEW sync.event_ids AS
SELECT key AS id, fingerprint AS hash, committed_id, first_seen_at AS status_updated_at
FROM tidelog.dedupe WHERE scope = 'sync';

CREATE VIEW sync.snapshots AS
SELECT partition, state, committed_id, created_at, model_version FROM tidelog.sync_snapshots;

CREATE VIEW sync.meta AS
SELECT head.committed_id AS last_committed_id, s.value AS model_version
FROM tidelog.head LEFT JOIN tidelog.sync_settings s ON s.name = 'model_version';
