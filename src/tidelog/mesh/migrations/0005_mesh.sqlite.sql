-- Mesh: meshes, members, topics and queues, what must be delivered to whom, mentions, and what is gone.
-- Sends themselves are entries of the streams mesh/{mesh id}, their keys are in dedupe.

CREATE TABLE mesh_setting (
  id                       TEXT PRIMARY KEY,
  slug                     TEXT NOT NULL,
  dedupe_retention_mode    TEXT NOT NULL,
  dedupe_retention_days    INTEGER NOT NULL,
  message_retention_days   INTEGER,
  echo_to_sender           INTEGER NOT NULL,
  rate_limit               INTEGER NOT NULL,
  rate_window_ms           INTEGER NOT NULL,
  clone_concurrency_policy TEXT NOT NULL,
  created_at               INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX mesh_setting_slug ON mesh_setting (slug);

CREATE TABLE mesh_member (
  id            TEXT PRIMARY KEY,
  mesh_id       TEXT NOT NULL,
  member_pubkey TEXT NOT NULL,
  name          TEXT NOT NULL,
  created_at    INTEGER NOT NULL,
  revoked_at    INTEGER
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX mesh_member_pubkey ON mesh_member (mesh_id, member_pubkey);
CREATE UNIQUE INDEX mesh_member_name ON mesh_member (mesh_id, name) WHERE revoked_at IS NULL;

CREATE TABLE mesh_topic (
  mesh_id    TEXT NOT NULL,
  name       TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (mesh_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE mesh_topic_subscription (
  mesh_id       TEXT NOT NULL,
  topic         TEXT NOT NULL,
  member_pubkey TEXT NOT NULL,
  created_at    INTEGER NOT NULL,
  PRIMARY KEY (mesh_id, topic, member_pubkey)
) STRICT, WITHOUT ROWID;

CREATE INDEX mesh_topic_subscription_member ON mesh_topic_subscription (mesh_id, member_pubkey, topic);

CREATE TABLE mesh_queue (
  mesh_id    TEXT NOT NULL,
  id         TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (mesh_id, id)
) STRICT, WITHOUT ROWID;

-- channel is push or webhook; recipient_pubkey is queue:{id} for a queue and empty for a webhook;
-- status is pending, claimed, delivered or dead.
CREATE TABLE mesh_delivery_queue (
  broker_message_id TEXT NOT NULL,
  recipient_pubkey  TEXT NOT NULL,
  channel           TEXT NOT NULL,
  endpoint_id       TEXT NOT NULL,
  mesh_id           TEXT NOT NULL,
  history_id        INTEGER NOT NULL,
  created_at        INTEGER NOT NULL,
  status            TEXT NOT NULL,
  attempts          INTEGER NOT NULL,
  next_attempt_at   INTEGER NOT NULL,
  last_error        TEXT,
  claimed_at        INTEGER,
  claim_id          TEXT,
  claim_expires_at  INTEGER,
  delivered_at      INTEGER,
  PRIMARY KEY (broker_message_id, recipient_pubkey, channel, endpoint_id)
) STRICT, WITHOUT ROWID;

-- Of the unfinished rows only, so that claims stay as quick as there is work, however much was
-- delivered. SQLite uses them for queries that say exactly: status IN ('pending', 'claimed').
CREATE INDEX mesh_delivery_due ON mesh_delivery_queue (mesh_id, recipient_pubkey, channel, history_id)
WHERE status IN ('pending', 'claimed');
CREATE INDEX mesh_delivery_time ON mesh_delivery_queue (channel, endpoint_id, next_attempt_at)
WHERE status IN ('pending', 'claimed');
CREATE INDEX mesh_delivery_lease ON mesh_delivery_queue (claim_expires_at) WHERE status = 'claimed';

CREATE TABLE mesh_mention_index (
  broker_message_id TEXT NOT NULL,
  mentioned_pubkey  TEXT NOT NULL,
  mesh_id           TEXT NOT NULL,
  history_id        INTEGER NOT NULL,
  created_at        INTEGER NOT NULL,
  PRIMARY KEY (broker_message_id, mentioned_pubkey)
) STRICT, WITHOUT ROWID;

CREATE INDEX mesh_mention_newest ON mesh_mention_index (mesh_id, mentioned_pubkey, history_id);

CREATE TABLE mesh_message_tombstone (
  broker_message_id TEXT PRIMARY KEY,
  mesh_id           TEXT NOT NULL,
  deleted_at        INTEGER NOT NULL,
  reason            TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Of an invite only its SHA-256 is kept: who reads the store cannot join with it.
CREATE TABLE mesh_invite (
  invite_hash BLOB PRIMARY KEY,
  mesh_id     TEXT NOT NULL,
  created_at  INTEGER NOT NULL,
  expires_at  INTEGER NOT NULL,
  used_at     INTEGER,
  used_by     TEXT
) STRICT, WITHOUT ROWID;

-- An empty topic stands for every message of the mesh.
CREATE TABLE mesh_webhook (
  id          TEXT PRIMARY KEY,
  mesh_id     TEXT NOT NULL,
  topic       TEXT NOT NULL,
  url         TEXT NOT NULL,
  secret      TEXT NOT NULL,
  created_at  INTEGER NOT NULL,
  disabled_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX mesh_webhook_mesh ON mesh_webhook (mesh_id, topic);

-- The relations of the contract (mesh 6.8) that are kept in the log and its keys.

CREATE VIEW mesh_mesh AS
SELECT id, slug,
       coalesce((SELECT max(stream_serial) FROM log WHERE stream = 'mesh/' || s.id), 0) AS history_seq,
       dedupe_retention_mode, dedupe_retention_days, message_retention_days, clone_concurrency_policy
FROM mesh_setting s;

CREATE VIEW mesh_client_message_dedupe AS
SELECT substr(scope, 6) AS mesh_id, key AS client_message_id,
       json_extract(CAST(outcome AS TEXT), '$.broker_message_id') AS broker_message_id,
       fingerprint AS request_fingerprint, owner AS sender_member_id,
       json_extract(CAST(outcome AS TEXT), '$.destination_kind') AS destination_kind,
       json_extract(CAST(outcome AS TEXT), '$.destination_ref') AS destination_ref,
       first_seen_at, expires_at, available AS history_available
FROM dedupe WHERE scope >= 'mesh/' AND scope < 'mesh0';

CREATE VIEW mesh_topic_message AS
SELECT entity AS id, substr(stream, 6) AS mesh_id, ref AS topic,
       json_extract(CAST(body AS TEXT), '$.client_message_id') AS client_message_id,
       actor AS sender_member_id,
       json_extract(CAST(body AS TEXT), '$.reply_to_id') AS reply_to_id,
       json_extract(CAST(body AS TEXT), '$.priority') AS priority,
       json_extract(CAST(body AS TEXT), '$.meta') AS meta,
       data AS body, committed_at AS created_at
FROM log WHERE stream >= 'mesh/' AND stream < 'mesh0' AND surface = 'mesh' AND kind = 'send.topic'
AND body IS NOT NULL;

CREATE VIEW mesh_message_queue AS
SELECT entity AS id, substr(stream, 6) AS mesh_id, substr(kind, 6) AS destination_kind,
       ref AS destination_ref,
       json_extract(CAST(body AS TEXT), '$.client_message_id') AS client_message_id,
       actor AS sender_member_id,
       json_extract(CAST(body AS TEXT), '$.reply_to_id') AS reply_to_id,
       json_extract(CAST(body AS TEXT), '$.priority') AS priority,
       json_extract(CAST(body AS TEXT), '$.meta') AS meta,
       data AS body, committed_at AS created_at
FROM log WHERE stream >= 'mesh/' AND stream < 'mesh0' AND surface = 'mesh'
AND kind IN ('send.dm', 'send.queue') AND body IS NOT NULL;

CREATE VIEW mesh_message_history AS
SELECT substr(stream, 6) AS mesh_id, stream_serial AS history_id, entity AS broker_message_id,
       substr(kind, 6) AS destination_kind, ref AS destination_ref, committed_at AS created_at
FROM log WHERE stream >= 'mesh/' AND stream < 'mesh0' AND surface = 'mesh';
