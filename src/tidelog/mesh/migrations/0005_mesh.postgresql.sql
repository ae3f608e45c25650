-- Mesh: meshes, members, topics and queues, what must be delivered to whom, mentions, and what is gone.
-- Sends themselves are entries of the streams mesh/{mesh id}, their keys are in dedupe.

CREATE TABLE tidelog.mesh_setting (
  id                       TEXT COLLATE "C" PRIMARY KEY,
  slug                     TEXT COLLATE "C" NOT NULL,
  dedupe_retention_mode    TEXT COLLATE "C" NOT NULL,
  dedupe_retention_days    BIGINT NOT NULL,
  message_retention_days   BIGINT,
  echo_to_sender           BIGINT NOT NULL,
  rate_limit               BIGINT NOT NULL,
  rate_window_ms           BIGINT NOT NULL,
  clone_concurrency_policy TEXT COLLATE "C" NOT NULL,
  created_at               BIGINT NOT NULL
);

CREATE UNIQUE INDEX mesh_setting_slug ON tidelog.mesh_setting (slug);

CREATE TABLE tidelog.mesh_member (
  id            TEXT COLLATE "C" PRIMARY KEY,
  mesh_id       TEXT COLLATE "C" NOT NULL,
  member_pubkey TEXT COLLATE "C" NOT NULL,
  name          TEXT COLLATE "C" NOT NULL,
  created_at    BIGINT NOT NULL,
  revoked_at    BIGINT
);

CREATE UNIQUE INDEX mesh_member_pubkey ON tidelog.mesh_member (mesh_id, member_pubkey);
CREATE UNIQUE INDEX mesh_member_name ON tidelog.mesh_member (mesh_id, name) WHERE revoked_at IS NULL;

CREATE TABLE tidelog.mesh_topic (
  mesh_id    TEXT COLLATE "C" NOT NULL,
  name       TEXT COLLATE "C" NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (mesh_id, name)
);

CREATE TABLE tidelog.mesh_topic_subscription (
  mesh_id       TEXT COLLATE "C" NOT NULL,
  topic         TEXT COLLATE "C" NOT NULL,
  member_pubkey TEXT COLLATE "C" NOT NULL,
  created_at    BIGINT NOT NULL,
  PRIMARY KEY (mesh_id, topic, member_pubkey)
);

CREATE INDEX mesh_topic_subscription_member
ON tidelog.mesh_topic_subscription (mesh_id, member_pubkey, topic);

CREATE TABLE tidelog.mesh_queue (
  mesh_id    TEXT COLLATE "C" NOT NULL,
  id         TEXT COLLATE "C" NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (mesh_id, id)
);

-- channel is push or webhook; recipient_pubkey is queue:{id} for a queue and empty for a webhook;
-- status is pending, claimed, delivered or dead.
CREATE TABLE tidelog.mesh_delivery_queue (
  broker_message_id TEXT COLLATE "C" NOT NULL,
  recipient_pubkey  TEXT COLLATE "C" NOT NULL,
  channel           TEXT COLLATE "C" NOT NULL,
  endpoint_id       TEXT COLLATE "C" NOT NULL,
  mesh_id           TEXT COLLATE "C" NOT NULL,
  history_id        BIGINT NOT NULL,
  created_at        BIGINT NOT NULL,
  status            TEXT COLLATE "C" NOT NULL,
  attempts          BIGINT NOT NULL,
  next_attempt_at   BIGINT NOT NULL,
  last_error        TEXT COLLATE "C",
  claimed_at        BIGINT,
  claim_id          TEXT COLLATE "C",
  claim_expires_at  BIGINT,
  delivered_at      BIGINT,
  PRIMARY KEY (broker_message_id, recipient_pubkey, channel, endpoint_id)
);

-- Of the unfinished rows only, so that claims stay as quick as there is work, however much was
-- delivered.
CREATE INDEX mesh_delivery_due ON tidelog.mesh_delivery_queue (mesh_id, recipient_pubkey, channel, history_id)
WHERE status IN ('pending', 'claimed');
CREATE INDEX mesh_delivery_time ON tidelog.mesh_delivery_queue (channel, endpoint_id, next_attempt_at)
WHERE status IN ('pending', 'claimed');
CREATE INDEX mesh_delivery_lease ON tidelog.mesh_delivery_queue (claim_expires_at) WHERE status = 'claimed';

CREATE TABLE tidelog.mesh_mention_index (
  broker_message_id TEXT COLLATE "C" NOT NULL,
  mentioned_pubkey  TEXT COLLATE "C" NOT NULL,
  mesh_id           TEXT COLLATE "C" NOT NULL,
  history_id        BIGINT NOT NULL,
  created_at        BIGINT NOT NULL,
  PRIMARY KEY (broker_message_id, mentioned_pubkey)
);

CREATE INDEX mesh_mention_newest ON tidelog.mesh_mention_index (mesh_id, mentioned_pubkey, history_id);

CREATE TABLE tidelog.mesh_message_tombstone (
  broker_message_id TEXT COLLATE "C" PRIMARY KEY,
  mesh_id           TEXT COLLATE "C" NOT NULL,
  deleted_at        BIGINT NOT NULL,
  reason            TEXT COLLATE "C" NOT NULL
);

-- Of an invite only its SHA-256 is kept: who reads the store cannot join with it.
CREATE TABLE tidelog.mesh_invite (
  invite_hash BYTEA PRIMARY KEY,
  mesh_id     TEXT COLLATE "C" NOT NULL,
  created_at  BIGINT NOT NULL,
  expires_at  BIGINT NOT NULL,
  used_at     BIGINT,
  used_by     TEXT COLLATE "C"
);

-- An empty topic stands for every message of the mesh.
CREATE TABLE tidelog.mesh_webhook (
  id          TEXT COLLATE "C" PRIMARY KEY,
  mesh_id     TEXT COLLATE "C" NOT NULL,
  topic       TEXT COLLATE "C" NOT NULL,
  url         TEXT COLLATE "C" NOT NULL,
  secret      TEXT COLLATE "C" NOT NULL,
  created_at  BIGINT NOT NULL,
  disabled_at BIGINT
);

CREATE INDEX mesh_webhook_mesh ON tidelog.mesh_webhook (mesh_id, topic);

-- The relations of the contract (mesh 6.8) under its names. The head of a stored send is cut
-- out in front of its meta, which is last and may hold an escaped U+0000: PostgreSQL's JSON functions
-- refuse that. No string of the head can hold the mark: its quotes are escaped.

CREATE SCHEMA IF NOT EXISTS mesh;

CREATE VIEW mesh.mesh AS
SELECT id::uuid AS id, slug,
       coalesce((SELECT max(stream_serial) FROM tidelog.log WHERE stream = 'mesh/' || s.id), 0)
         AS history_seq,
       dedupe_retention_mode, dedupe_retention_days, message_retention_days, clone_concurrency_policy
FROM tidelog.mesh_setting s;

CREATE VIEW mesh.member AS
SELECT id, mesh_id::uuid AS mesh_id, member_pubkey, name, to_timestamp(revoked_at / 1000.0) AS revoked_at
FROM tidelog.mesh_member;

CREATE VIEW mesh.topic AS SELECT mesh_id::uuid AS mesh_id, name FROM tidelog.mesh_topic;

CREATE VIEW mesh.topic_subscription AS
SELECT mesh_id::uuid AS mesh_id, topic, member_pubkey, to_timestamp(created_at / 1000.0) AS created_at
FROM tidelog.mesh_topic_subscription;

CREATE VIEW mesh.client_message_dedupe AS
SELECT substr(scope, 6)::uuid AS mesh_id, key AS client_message_id,
       stored.outcome ->> 'broker_message_id' AS broker_message_id,
       fingerprint AS request_fingerprint, owner AS sender_member_id,
       stored.outcome ->> 'destination_kind' AS destination_kind,
       stored.outcome ->> 'destination_ref' AS destination_ref,
       to_timestamp(first_seen_at / 1000.0) AS first_seen_at,
       to_timestamp(expires_at / 1000.0) AS expires_at, available = 1 AS history_available
FROM tidelog.dedupe d, LATERAL (SELECT convert_from(d.outcome, 'UTF8')::json AS outcome) AS stored
WHERE scope >= 'mesh/' AND scope < 'mesh0';

CREATE VIEW mesh.stored_send AS
SELECT entity AS id, substr(stream, 6)::uuid AS mesh_id, substr(kind, 6) AS destination_kind,
       ref AS destination_ref, head.fields ->> 'client_message_id' AS client_message_id,
       actor AS sender_member_id, head.fields ->> 'reply_to_id' AS reply_to_id,
       head.fields ->> 'priority' AS priority,
       CASE WHEN whole.meta_at > 0 THEN left(substr(whole.text, whole.meta_at + 8), -1) END AS meta,
       data AS body, to_timestamp(committed_at / 1000.0) AS created_at
FROM tidelog.log l,
LATERAL (SELECT convert_from(l.body, 'UTF8') AS text,
                strpos(convert_from(l.body, 'UTF8'), ',"meta":') AS meta_at) AS whole,
LATERAL (SELECT (CASE WHEN whole.meta_at > 0 THEN left(whole.text, whole.meta_at - 1) || '}'
                      ELSE whole.text END)::json AS fields) AS head
WHERE stream >= 'mesh/' AND stream < 'mesh0' AND surface = 'mesh' AND l.body IS NOT NULL;

CREATE VIEW mesh.topic_message AS
SELECT id, mesh_id, destination_ref AS topic, client_message_id, sender_member_id, reply_to_id, priority,
       meta, body, created_at
FROM mesh.stored_send WHERE destination_kind = 'topic';

CREATE VIEW mesh.message_queue AS
SELECT * FROM mesh.stored_send WHERE destination_kind IN ('dm', 'queue');

CREATE VIEW mesh.message_history AS
SELECT substr(stream, 6)::uuid AS mesh_id, stream_serial AS history_id, entity AS broker_message_id,
       substr(kind, 6) AS destination_kind, ref AS destination_ref,
       to_timestamp(committed_at / 1000.0) AS created_at
FROM tidelog.log WHERE stream >= 'mesh/' AND stream < 'mesh0' AND surface = 'mesh';

CREATE VIEW mesh.delivery_queue AS
SELECT broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id::uuid AS mesh_id, history_id,
       to_timestamp(created_at / 1000.0) AS created_at, status, attempts,
       to_timestamp(next_attempt_at / 1000.0) AS next_attempt_at, last_error,
       to_timestamp(claimed_at / 1000.0) AS claimed_at, claim_id,
       to_timestamp(claim_expires_at / 1000.0) AS claim_expires_at,
       to_timestamp(delivered_at / 1000.0) AS delivered_at
FROM tidelog.mesh_delivery_queue;

CREATE VIEW mesh.mention_index AS
SELECT broker_message_id, mentioned_pubkey, mesh_id::uuid AS mesh_id,
       to_timestamp(created_at / 1000.0) AS created_at
FROM tidelog.mesh_mention_index;

CREATE VIEW mesh.message_tombstone AS
SELECT broker_message_id, mesh_id::uuid AS mesh_id, to_timestamp(deleted_at / 1000.0) AS deleted_at, reason
FROM tidelog.mesh_message_tombstone;

-- What all nodes count together and nobody misses after a crash of the database: unlogged, not part
-- of a backup, and therefore not in the schema of the store.

CREATE UNLOGGED TABLE mesh.rate_limit_idem (
  mesh_id           TEXT COLLATE "C" NOT NULL,
  client_message_id TEXT COLLATE "C" NOT NULL,
  window_bucket     BIGINT NOT NULL,
  PRIMARY KEY (mesh_id, window_bucket, client_message_id)
);

CREATE UNLOGGED TABLE mesh.rate_limit_window (
  mesh_id       TEXT COLLATE "C" NOT NULL,
  window_bucket BIGINT NOT NULL,
  used          BIGINT NOT NULL,
  PRIMARY KEY (mesh_id, window_bucket)
) WITH (fillfactor = 10);

CREATE UNLOGGED TABLE mesh.used_token (
  token      TEXT COLLATE "C" PRIMARY KEY,
  expires_at BIGINT NOT NULL
);

CREATE INDEX used_token_expiry ON mesh.used_token (expires_at);

-- Takes units of several ids at once (mesh 6.3). The row of the window is locked first, so all
-- takers of a window follow one another, and each statement in here sees what the one before it left.
-- Answers the number of each id, and whether it is `known` (counted before), `taken` or `denied`.
CREATE FUNCTION mesh.take_units(meshes TEXT[], ids TEXT[], buckets BIGINT[], limits BIGINT[])
RETURNS TABLE (number BIGINT, verdict TEXT) LANGUAGE plpgsql AS $$
DECLARE
  asked RECORD;
  already BIGINT;
  counted TEXT[];
  admitted TEXT[];
BEGIN
  FOR asked IN
    SELECT g.mesh, g.bucket, max(g.most) AS most
    FROM unnest(meshes, buckets, limits) AS g (mesh, bucket, most) GROUP BY 1, 2 ORDER BY 1, 2
  LOOP
    INSERT INTO mesh.rate_limit_window (mesh_id, window_bucket, used) VALUES (asked.mesh, asked.bucket, 0)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
      DELETE FROM mesh.rate_limit_idem i WHERE i.mesh_id = asked.mesh AND i.window_bucket < asked.bucket - 1;
      DELETE FROM mesh.rate_limit_window w
      WHERE w.mesh_id = asked.mesh AND w.window_bucket < asked.bucket - 1;
    END IF;
    SELECT w.used INTO already FROM mesh.rate_limit_window w
    WHERE w.mesh_id = asked.mesh AND w.window_bucket = asked.bucket FOR UPDATE;
    counted := ARRAY(
      SELECT i.client_message_id FROM mesh.rate_limit_idem i
      WHERE i.mesh_id = asked.mesh AND i.window_bucket = asked.bucket AND i.client_message_id = ANY(ids));
    admitted := ARRAY(
      SELECT n.id FROM unnest(meshes, ids, buckets) WITH ORDINALITY AS n (mesh, id, bucket, number)
      WHERE n.mesh = asked.mesh AND n.bucket = asked.bucket AND n.id <> ALL(counted)
      GROUP BY n.id ORDER BY min(n.number) LIMIT greatest(asked.most - already, 0));
    INSERT INTO mesh.rate_limit_idem (mesh_id, client_message_id, window_bucket)
    SELECT asked.mesh, a, asked.bucket FROM unnest(admitted) AS a;
    UPDATE mesh.rate_limit_window w SET used = used + cardinality(admitted)
    WHERE w.mesh_id = asked.mesh AND w.window_bucket = asked.bucket AND cardinality(admitted) > 0;
    RETURN QUERY
      SELECT n.number,
             CASE WHEN n.id = ANY(counted) THEN 'known'
                  WHEN n.id <> ALL(admitted) THEN 'denied'
                  WHEN n.number = min(n.number) OVER (PARTITION BY n.id) THEN 'taken'
                  ELSE 'known' END
      FROM unnest(meshes, ids, buckets) WITH ORDINALITY AS n (mesh, id, bucket, number)
      WHERE n.mesh = asked.mesh AND n.bucket = asked.bucket;
  END LOOP;
END $$;
