-- name: mesh_by_slug
-- A mesh under its public name.
SELECT id, slug, dedupe_retention_mode, dedupe_retention_days, message_retention_days, echo_to_sender,
       rate_limit, rate_window_ms, shortest_window_days, clone_concurrency_policy
FROM mesh_setting WHERE slug = ?;

-- name: mesh_by_id
-- A mesh.
SELECT id, slug, dedupe_retention_mode, dedupe_retention_days, message_retention_days, echo_to_sender,
       rate_limit, rate_window_ms, shortest_window_days, clone_concurrency_policy
FROM mesh_setting WHERE id = ?;

-- name: mesh_add
-- A new mesh.
INSERT INTO mesh_setting (id, slug, dedupe_retention_mode, dedupe_retention_days, message_retention_days,
                          echo_to_sender, rate_limit, rate_window_ms, shortest_window_days,
                          clone_concurrency_policy, created_at, seal)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, seal(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?10, ?11, ?9));

-- name: mesh_change
-- Other settings of a mesh.
UPDATE mesh_setting SET dedupe_retention_mode = ?2, dedupe_retention_days = ?3, message_retention_days = ?4,
  echo_to_sender = ?5, rate_limit = ?6, rate_window_ms = ?7, shortest_window_days = ?8,
  clone_concurrency_policy = ?9, seal = seal(id, slug, ?2, ?3, ?4, ?5, ?6, ?7, ?9, created_at, ?8)
WHERE id = ?1;

-- name: mesh_counts
-- How many members, topics, queues, webhooks and open invites a mesh has.
SELECT (SELECT count(*) FROM mesh_member WHERE mesh_id = ?1 AND revoked_at IS NULL),
       (SELECT count(*) FROM mesh_topic WHERE mesh_id = ?1),
       (SELECT count(*) FROM mesh_queue WHERE mesh_id = ?1),
       (SELECT count(*) FROM mesh_webhook WHERE mesh_id = ?1),
       (SELECT count(*) FROM mesh_invite WHERE mesh_id = ?1 AND used_at IS NULL AND expires_at > ?2);

-- name: mesh_made_by
-- How many topics and queues of a mesh a member has made.
SELECT (SELECT count(*) FROM mesh_topic WHERE mesh_id = ?1 AND created_by = ?2),
       (SELECT count(*) FROM mesh_queue WHERE mesh_id = ?1 AND created_by = ?2);

-- name: mesh_member
-- A member by its key.
SELECT id, name, revoked_at FROM mesh_member WHERE mesh_id = ? AND member_pubkey = ?;

-- name: mesh_member_named
-- Who has a name.
SELECT member_pubkey FROM mesh_member WHERE mesh_id = ? AND name = ? AND revoked_at IS NULL;

-- name: mesh_members
-- The members of a mesh after a key, in the order of their keys.
SELECT member_pubkey, name FROM mesh_member
WHERE mesh_id = ? AND member_pubkey > ? AND revoked_at IS NULL ORDER BY member_pubkey LIMIT ?;

-- name: mesh_add_member
-- A new member.
INSERT INTO mesh_member (id, mesh_id, member_pubkey, name, created_at, seal)
VALUES (?1, ?2, ?3, ?4, ?5, seal(?1, ?2, ?3, ?4, ?5, NULL));

-- name: mesh_revoke_member
-- A member is none any more; its key stays known.
UPDATE mesh_member SET revoked_at = ?3, seal = seal(id, mesh_id, member_pubkey, name, created_at, ?3)
WHERE mesh_id = ?1 AND member_pubkey = ?2 AND revoked_at IS NULL;

-- name: mesh_remove_subscriptions
-- Whoever is no member receives nothing.
DELETE FROM mesh_topic_subscription WHERE mesh_id = ? AND member_pubkey = ?;

-- name: mesh_invite
-- An invite by its hash.
SELECT mesh_id, expires_at, used_at FROM mesh_invite WHERE invite_hash = ?;

-- name: mesh_add_invite
-- A new invite.
INSERT INTO mesh_invite (invite_hash, mesh_id, created_at, expires_at, seal)
VALUES (?1, ?2, ?3, ?4, seal(?1, ?2, ?3, ?4, NULL, NULL));

-- name: mesh_invites
-- Invites of a mesh that can still be used.
SELECT invite_hash, created_at, expires_at FROM mesh_invite
WHERE mesh_id = ? AND used_at IS NULL AND expires_at > ? ORDER BY created_at, invite_hash;

-- name: mesh_remove_invite
-- An invite is taken back.
DELETE FROM mesh_invite WHERE invite_hash = ?;

-- name: mesh_use_invite
-- An invite is used up.
UPDATE mesh_invite SET used_at = ?2, used_by = ?3,
  seal = seal(invite_hash, mesh_id, created_at, expires_at, ?2, ?3)
WHERE invite_hash = ?1;

-- name: mesh_remove_invites
-- Invites that can no longer be used.
DELETE FROM mesh_invite WHERE mesh_id = ? AND (used_at IS NOT NULL OR expires_at <= ?);

-- name: mesh_topic
-- The subscribers of a topic, and who made it; one row without a key if it has none, no row if there is no such topic.
SELECT s.member_pubkey, t.created_by FROM mesh_topic t
LEFT JOIN mesh_topic_subscription s ON s.mesh_id = t.mesh_id AND s.topic = t.name
WHERE t.mesh_id = ? AND t.name = ? ORDER BY s.member_pubkey;

-- name: mesh_topics
-- The topics of a mesh, and whether a member is subscribed to each.
SELECT t.name, s.member_pubkey IS NOT NULL FROM mesh_topic t
LEFT JOIN mesh_topic_subscription s
  ON s.mesh_id = t.mesh_id AND s.topic = t.name AND s.member_pubkey = ?2
WHERE t.mesh_id = ?1 ORDER BY t.name;

-- name: mesh_add_topic
-- A new topic.
INSERT INTO mesh_topic (mesh_id, name, created_at, created_by, seal)
VALUES (?1, ?2, ?3, ?4, seal(?1, ?2, ?3, ?4));

-- name: mesh_remove_topic
-- A topic is gone.
DELETE FROM mesh_topic WHERE mesh_id = ? AND name = ?;

-- name: mesh_remove_topic_subscriptions
-- Nobody receives a topic that is gone.
DELETE FROM mesh_topic_subscription WHERE mesh_id = ? AND topic = ?;

-- name: mesh_subscribe
-- A member receives a topic from now on.
INSERT INTO mesh_topic_subscription (mesh_id, topic, member_pubkey, created_at, seal)
VALUES (?1, ?2, ?3, ?4, seal(?1, ?2, ?3, ?4));

-- name: mesh_unsubscribe
-- A member no longer receives a topic.
DELETE FROM mesh_topic_subscription WHERE mesh_id = ? AND topic = ? AND member_pubkey = ?;

-- name: mesh_queue
-- Whether there is a queue, and who made it.
SELECT id, created_by FROM mesh_queue WHERE mesh_id = ? AND id = ?;

-- name: mesh_queues
-- The queues of a mesh.
SELECT id FROM mesh_queue WHERE mesh_id = ? ORDER BY id;

-- name: mesh_add_queue
-- A new queue.
INSERT INTO mesh_queue (mesh_id, id, created_at, created_by, seal)
VALUES (?1, ?2, ?3, ?4, seal(?1, ?2, ?3, ?4));

-- name: mesh_remove_queue
-- A queue is gone.
DELETE FROM mesh_queue WHERE mesh_id = ? AND id = ?;

-- name: mesh_webhooks
-- Endpoints that get a message of a topic, or with an empty topic any other message.
SELECT id FROM mesh_webhook
WHERE mesh_id = ?1 AND topic IN ('', ?2) AND disabled_at IS NULL ORDER BY id;

-- name: mesh_all_webhooks
-- All endpoints of a mesh, without their secrets.
SELECT id, topic, url, created_at, disabled_at FROM mesh_webhook WHERE mesh_id = ? ORDER BY id;

-- name: mesh_webhook
-- Whether an endpoint is of a mesh.
SELECT id FROM mesh_webhook WHERE mesh_id = ? AND id = ?;

-- name: mesh_add_webhook
-- A new endpoint.
INSERT INTO mesh_webhook (id, mesh_id, topic, url, secret, created_at, seal)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, seal(?1, ?2, ?3, ?4, ?5, ?6, NULL));

-- name: mesh_remove_webhook
-- An endpoint is gone.
DELETE FROM mesh_webhook WHERE mesh_id = ? AND id = ?;

-- name: mesh_end_webhook
-- What an endpoint that is gone has not got, it will not get.
UPDATE mesh_delivery_queue SET status = 'dead', last_error = 'endpoint_removed',
  claim_id = NULL, claim_expires_at = NULL,
  seal = seal(broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at,
              'dead', attempts, next_attempt_at, 'endpoint_removed', claimed_at, NULL, NULL, delivered_at)
WHERE mesh_id = ?1 AND recipient_pubkey = '' AND channel = 'webhook' AND endpoint_id = ?2
AND status IN ('pending', 'claimed');

-- name: mesh_add_delivery
-- Somebody is to get a message.
INSERT INTO mesh_delivery_queue (broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id,
                                 history_id, created_at, status, attempts, next_attempt_at, seal)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'pending', 0, ?7,
        seal(?1, ?2, ?3, ?4, ?5, ?6, ?7, 'pending', 0, ?7, NULL, NULL, NULL, NULL, NULL));

-- name: mesh_add_mention
-- A message mentions a member.
INSERT INTO mesh_mention_index (broker_message_id, mentioned_pubkey, mesh_id, history_id, created_at, seal)
VALUES (?1, ?2, ?3, ?4, ?5, seal(?1, ?2, ?3, ?4, ?5));

-- name: mesh_dedupe_row
-- The row of one key, for whoever asks for many at once.
SELECT scope, key, committed_id, fingerprint, owner, outcome, available, first_seen_at, expires_at
FROM dedupe WHERE scope = ? AND key = ?;

-- name: mesh_known_ids
-- The rows of some keys of a scope; they are a JSON array.
SELECT d.scope, d.key, d.committed_id, d.fingerprint, d.owner, d.outcome, d.available, d.first_seen_at,
       d.expires_at
FROM json_each(?2) AS asked CROSS JOIN dedupe d ON d.scope = ?1 AND d.key = asked.value;

-- name: mesh_history_seq
-- The newest message of a mesh, by its stream.
SELECT coalesce(max(stream_serial), 0) FROM log WHERE stream = ?;

-- name: mesh_history_position
-- Where in the log a message of a mesh is, by its stream.
SELECT committed_id FROM log WHERE stream = ? AND stream_serial = ?;

-- name: mesh_visible
-- Which messages of a stretch of the history a member may see, oldest first, and how large they are.
SELECT l.stream_serial, coalesce(length(l.body), 0) + coalesce(length(l.data), 0) FROM log l
WHERE l.stream = 'mesh/' || ?1 AND l.stream_serial > ?4 AND l.stream_serial <= ?5 AND l.body IS NOT NULL
AND CASE l.kind
    WHEN 'send.topic' THEN EXISTS (SELECT 1 FROM mesh_topic_subscription s
                                   WHERE s.mesh_id = ?1 AND s.topic = l.ref AND s.member_pubkey = ?2)
    WHEN 'send.dm' THEN l.ref = ?2 OR l.actor = ?3
    ELSE 0 END
ORDER BY l.stream_serial LIMIT ?6;

-- name: mesh_mentions
-- Of the newest mentions of somebody before a history_id, those that a member may see.
SELECT m.history_id,
       coalesce(length(l.body), 0) + coalesce(length(l.data), 0),
       l.body IS NOT NULL AND CASE l.kind
       WHEN 'send.topic' THEN EXISTS (SELECT 1 FROM mesh_topic_subscription s
                                      WHERE s.mesh_id = ?1 AND s.topic = l.ref AND s.member_pubkey = ?2)
       WHEN 'send.dm' THEN l.ref = ?2 OR l.actor = ?3
       ELSE 0 END
FROM mesh_mention_index m
JOIN log l ON l.stream = 'mesh/' || ?1 AND l.stream_serial = m.history_id
WHERE m.mesh_id = ?1 AND m.mentioned_pubkey = ?4 AND m.history_id < ?5
ORDER BY m.history_id DESC LIMIT ?6;

-- name: mesh_entry
-- A message as it is stored.
SELECT stream_serial, kind, entity, ref, committed_at, body, data FROM log
WHERE stream = ? AND stream_serial = ? AND body IS NOT NULL;

-- name: mesh_used_token
-- Whether a token was used.
SELECT token FROM mesh_used_token WHERE token = ?;

-- name: mesh_use_token
-- A token is used once.
INSERT INTO mesh_used_token (token, expires_at, seal) VALUES (?1, ?2, seal(?1, ?2));

-- name: mesh_forget_tokens
-- Tokens that have expired need not be known.
DELETE FROM mesh_used_token WHERE expires_at < ?;
