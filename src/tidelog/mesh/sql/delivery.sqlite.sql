-- name: mesh_due
-- What can be leased to a recipient now, oldest first, and how large it is.
SELECT q.broker_message_id, q.history_id, coalesce(length(l.body), 0) + coalesce(length(l.data), 0)
FROM mesh_delivery_queue q
JOIN log l ON l.stream = 'mesh/' || q.mesh_id AND l.stream_serial = q.history_id AND l.body IS NOT NULL
WHERE q.mesh_id = ?1 AND q.recipient_pubkey = ?2 AND q.channel = 'push'
AND q.status IN ('pending', 'claimed')
AND CASE q.status WHEN 'pending' THEN q.next_attempt_at ELSE q.claim_expires_at END <= ?3
ORDER BY q.history_id LIMIT ?4;

-- name: mesh_waiting
-- Whether anything can be leased to a recipient now.
SELECT 1 FROM mesh_delivery_queue
WHERE mesh_id = ?1 AND recipient_pubkey = ?2 AND channel = 'push' AND status IN ('pending', 'claimed')
AND CASE status WHEN 'pending' THEN next_attempt_at ELSE claim_expires_at END <= ?3
LIMIT 1;

-- name: mesh_recipients
-- Members whom a message has not been pushed to yet.
SELECT recipient_pubkey FROM mesh_delivery_queue
WHERE broker_message_id = ? AND channel = 'push' AND status = 'pending';

-- name: mesh_delivery
-- The state of one delivery.
SELECT mesh_id, status, claim_id, attempts FROM mesh_delivery_queue
WHERE broker_message_id = ? AND recipient_pubkey = ? AND channel = ? AND endpoint_id = ?;

-- name: mesh_claim_delivery
-- A lease; it is not given while another one holds.
UPDATE mesh_delivery_queue SET status = 'claimed', attempts = attempts + 1, claim_id = ?5, claimed_at = ?6,
  claim_expires_at = ?7, next_attempt_at = ?7,
  seal = seal(broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at,
              'claimed', attempts + 1, ?7, last_error, ?6, ?5, ?7, delivered_at)
WHERE broker_message_id = ?1 AND recipient_pubkey = ?2 AND channel = ?3 AND endpoint_id = ?4
AND status IN ('pending', 'claimed') AND (status = 'pending' OR claim_expires_at <= ?6);

-- name: mesh_finish_delivery
-- What became of a lease; without it nothing changes. A row that waits again has forgotten its claim.
UPDATE mesh_delivery_queue SET status = ?6, next_attempt_at = ?7, last_error = ?8, delivered_at = ?9,
  claim_expires_at = NULL, claim_id = CASE ?6 WHEN 'pending' THEN NULL ELSE claim_id END,
  seal = seal(broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at,
              ?6, attempts, ?7, ?8, claimed_at, CASE ?6 WHEN 'pending' THEN NULL ELSE claim_id END, NULL, ?9)
WHERE broker_message_id = ?1 AND recipient_pubkey = ?2 AND channel = ?3 AND endpoint_id = ?4
AND status = 'claimed' AND claim_id = ?5;

-- name: mesh_expired_leases
-- Leases that have ended, a few at a time.
SELECT broker_message_id, recipient_pubkey, channel, endpoint_id FROM mesh_delivery_queue
WHERE status = 'claimed' AND claim_expires_at <= ? ORDER BY claim_expires_at LIMIT ?;

-- name: mesh_reap_delivery
-- A lease has ended without an acknowledgement.
UPDATE mesh_delivery_queue SET status = 'pending', next_attempt_at = ?5, last_error = 'lease_expired',
  claim_id = NULL, claim_expires_at = NULL,
  seal = seal(broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at,
              'pending', attempts, ?5, 'lease_expired', claimed_at, NULL, NULL, delivered_at)
WHERE broker_message_id = ?1 AND recipient_pubkey = ?2 AND channel = ?3 AND endpoint_id = ?4
AND status = 'claimed' AND claim_expires_at <= ?5;

-- name: mesh_bury_delivery
-- A delivery that will not be tried again.
UPDATE mesh_delivery_queue SET status = 'dead', last_error = ?5, claim_id = NULL, claim_expires_at = NULL,
  seal = seal(broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at,
              'dead', attempts, next_attempt_at, ?5, claimed_at, NULL, NULL, delivered_at)
WHERE broker_message_id = ?1 AND recipient_pubkey = ?2 AND channel = ?3 AND endpoint_id = ?4
AND status IN ('pending', 'claimed');

-- name: mesh_end_recipient
-- Somebody is gone, and gets nothing up to a message.
INSERT INTO mesh_ended_recipient (mesh_id, recipient_pubkey, reason, through, seal)
VALUES (?1, ?2, ?3, ?4, seal(?1, ?2, ?3, ?4))
ON CONFLICT (mesh_id, recipient_pubkey) DO UPDATE
SET reason = excluded.reason, through = excluded.through, seal = excluded.seal;

-- name: mesh_ended_recipients
-- Those who are gone and whose deliveries may be open, a few at a time.
SELECT mesh_id, recipient_pubkey, reason, through FROM mesh_ended_recipient LIMIT ?;

-- name: mesh_open_deliveries
-- What a recipient has not got up to a message, a few at a time.
SELECT broker_message_id FROM mesh_delivery_queue
WHERE mesh_id = ?1 AND recipient_pubkey = ?2 AND channel = 'push' AND history_id <= ?3
AND status IN ('pending', 'claimed') ORDER BY history_id LIMIT ?4;

-- name: mesh_forget_recipient
-- All deliveries of somebody who is gone are closed.
DELETE FROM mesh_ended_recipient WHERE mesh_id = ? AND recipient_pubkey = ? AND through = ?;

-- name: mesh_endpoints_due
-- Endpoints after an id that have something to get now.
SELECT w.id FROM mesh_webhook w
WHERE w.id > ?1 AND w.disabled_at IS NULL AND EXISTS (
  SELECT 1 FROM mesh_delivery_queue q
  WHERE q.channel = 'webhook' AND q.endpoint_id = w.id AND q.status IN ('pending', 'claimed')
  AND q.next_attempt_at <= ?2)
ORDER BY w.id LIMIT ?3;

-- name: mesh_webhook_due
-- What an endpoint is to get now.
SELECT broker_message_id, history_id, attempts FROM mesh_delivery_queue
WHERE channel = 'webhook' AND endpoint_id = ?1 AND status IN ('pending', 'claimed')
AND next_attempt_at <= ?2 AND (status = 'pending' OR claim_expires_at <= ?2)
ORDER BY next_attempt_at, history_id LIMIT ?3;

-- name: mesh_webhook_target
-- Where messages of an endpoint go, unless it is disabled.
SELECT w.mesh_id, s.slug, w.url, w.secret FROM mesh_webhook w JOIN mesh_setting s ON s.id = w.mesh_id
WHERE w.id = ? AND w.disabled_at IS NULL;

-- name: mesh_disable_webhook
-- An endpoint said that it is gone.
UPDATE mesh_webhook SET disabled_at = ?2, seal = seal(id, mesh_id, topic, url, secret, created_at, ?2)
WHERE id = ?1 AND disabled_at IS NULL;

-- name: mesh_end_endpoint
-- What a disabled endpoint has not got, it will not get.
UPDATE mesh_delivery_queue SET status = 'dead', last_error = 'endpoint_disabled',
  claim_id = NULL, claim_expires_at = NULL,
  seal = seal(broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at,
              'dead', attempts, next_attempt_at, 'endpoint_disabled', claimed_at, NULL, NULL, delivered_at)
WHERE channel = 'webhook' AND endpoint_id = ? AND status IN ('pending', 'claimed');

-- name: mesh_lost_webhook_deliveries
-- Deliveries to endpoints that are gone, written by a send that did not know it yet; a few at a time.
SELECT q.broker_message_id, q.endpoint_id FROM mesh_delivery_queue q
WHERE q.channel = 'webhook' AND q.status IN ('pending', 'claimed') AND NOT EXISTS (
  SELECT 1 FROM mesh_webhook w WHERE w.id = q.endpoint_id AND w.disabled_at IS NULL)
LIMIT ?;

-- name: mesh_deliveries_page
-- Deliveries after one of them, in the order of their messages.
SELECT broker_message_id, recipient_pubkey, channel, endpoint_id, status, created_at FROM mesh_delivery_queue
WHERE (broker_message_id, recipient_pubkey, channel, endpoint_id) > (?1, ?2, ?3, ?4)
ORDER BY broker_message_id, recipient_pubkey, channel, endpoint_id LIMIT ?5;

-- name: mesh_remove_delivery
-- A finished delivery that nobody asks for any more.
DELETE FROM mesh_delivery_queue
WHERE broker_message_id = ? AND recipient_pubkey = ? AND channel = ? AND endpoint_id = ?
AND status IN ('delivered', 'dead');

-- name: mesh_page
-- Meshes after an id.
SELECT id, slug, dedupe_retention_mode, dedupe_retention_days, message_retention_days, echo_to_sender,
       rate_limit, rate_window_ms, shortest_window_days, clone_concurrency_policy
FROM mesh_setting WHERE id > ? ORDER BY id LIMIT ?;

-- name: mesh_too_old
-- Messages of a stream after a position that were accepted before a time and still have their content.
-- Times ascend along a stream, so a page of it tells.
SELECT committed_id, stream_serial, entity, body FROM (
  SELECT committed_id, stream_serial, entity, body, committed_at FROM log
  WHERE stream = ?1 AND stream_serial > ?2 AND body IS NOT NULL ORDER BY stream_serial LIMIT ?4
) WHERE committed_at < ?3 ORDER BY stream_serial;

-- name: mesh_add_tombstone
-- A message whose content is gone.
INSERT INTO mesh_message_tombstone (broker_message_id, mesh_id, deleted_at, reason, seal)
VALUES (?1, ?2, ?3, ?4, seal(?1, ?2, ?3, ?4))
ON CONFLICT (broker_message_id) DO NOTHING;

-- name: mesh_expire_deliveries
-- Nobody gets a message any more whose content is gone.
UPDATE mesh_delivery_queue SET status = 'dead', last_error = 'retention_expired',
  claim_id = NULL, claim_expires_at = NULL,
  seal = seal(broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at,
              'dead', attempts, next_attempt_at, 'retention_expired', claimed_at, NULL, NULL, delivered_at)
WHERE broker_message_id = ? AND status IN ('pending', 'claimed');

-- name: mesh_expired_keys
-- Ids whose time is over and whose messages nobody waits for, a few at a time.
SELECT d.scope, d.key, json_extract(CAST(d.outcome AS TEXT), '$.broker_message_id') FROM dedupe d
WHERE d.expires_at < ?1 AND d.scope >= 'mesh/' AND d.scope < 'mesh0' AND NOT EXISTS (
  SELECT 1 FROM mesh_delivery_queue q
  WHERE q.broker_message_id = json_extract(CAST(d.outcome AS TEXT), '$.broker_message_id')
  AND q.status IN ('pending', 'claimed'))
ORDER BY d.expires_at LIMIT ?2;

-- name: mesh_unfinished
-- Whether somebody still waits for a message.
SELECT 1 FROM mesh_delivery_queue WHERE broker_message_id = ? AND status IN ('pending', 'claimed') LIMIT 1;

-- name: mesh_check_keys
-- Ids after one of them with their stored replies, and the entry that each was committed with.
SELECT page.scope, page.key, page.available, page.outcome, l.entity, l.body IS NOT NULL,
       t.broker_message_id IS NOT NULL
FROM (
  SELECT scope, key, available, outcome, committed_id FROM dedupe
  WHERE (scope, key) > (?1, ?2) AND scope >= 'mesh/' AND scope < 'mesh0'
  ORDER BY scope, key LIMIT ?3
) AS page
LEFT JOIN log l ON l.committed_id = page.committed_id AND l.stream = page.scope
LEFT JOIN mesh_message_tombstone t ON t.broker_message_id = l.entity
ORDER BY page.scope, page.key;

-- name: mesh_tombstone
-- The tombstone of a message.
SELECT broker_message_id FROM mesh_message_tombstone WHERE broker_message_id = ?;

-- name: mesh_check_entries
-- Entries of all meshes after a position, and whether they have a tombstone.
SELECT page.*, t.broker_message_id IS NOT NULL FROM (
  SELECT stream, stream_serial, entity, committed_at, kind, ref, body FROM log
  WHERE (stream, stream_serial) > (?1, ?2) AND stream >= 'mesh/' AND stream < 'mesh0'
  ORDER BY stream, stream_serial LIMIT ?3
) AS page LEFT JOIN mesh_message_tombstone t ON t.broker_message_id = page.entity
ORDER BY page.stream, page.stream_serial;

-- name: mesh_check_fan_out
-- How many deliveries of a message there are: to members, to endpoints, and to one recipient.
SELECT count(*) FILTER (WHERE channel = 'push'), count(*) FILTER (WHERE channel = 'webhook'),
       count(*) FILTER (WHERE channel = 'push' AND recipient_pubkey = ?2)
FROM mesh_delivery_queue WHERE broker_message_id = ?1;

-- name: mesh_check_mentioned
-- Whom a message mentions.
SELECT mentioned_pubkey FROM mesh_mention_index WHERE broker_message_id = ?;

-- name: mesh_check_deliveries
-- Unfinished deliveries that are older than a time, after one of them, with their messages.
SELECT q.mesh_id, q.recipient_pubkey, q.channel, q.history_id, q.endpoint_id, q.broker_message_id, l.body
FROM mesh_delivery_queue q
LEFT JOIN log l ON l.stream = 'mesh/' || q.mesh_id AND l.stream_serial = q.history_id
  AND l.entity = q.broker_message_id
WHERE (q.mesh_id, q.recipient_pubkey, q.channel, q.history_id, q.endpoint_id) > (?1, ?2, ?3, ?4, ?5)
AND q.status IN ('pending', 'claimed') AND q.created_at < ?6
ORDER BY q.mesh_id, q.recipient_pubkey, q.channel, q.history_id, q.endpoint_id LIMIT ?7;

-- name: mesh_check_mentions
-- Mentions after one of them, and whether there is a message or a tombstone.
SELECT m.broker_message_id, m.mentioned_pubkey, m.mesh_id, l.committed_id IS NOT NULL,
       t.broker_message_id IS NOT NULL
FROM (
  SELECT broker_message_id, mentioned_pubkey, mesh_id, history_id FROM mesh_mention_index
  WHERE (broker_message_id, mentioned_pubkey) > (?1, ?2)
  ORDER BY broker_message_id, mentioned_pubkey LIMIT ?3
) AS m
LEFT JOIN log l ON l.stream = 'mesh/' || m.mesh_id AND l.stream_serial = m.history_id
  AND l.entity = m.broker_message_id AND l.body IS NOT NULL
LEFT JOIN mesh_message_tombstone t ON t.broker_message_id = m.broker_message_id
ORDER BY m.broker_message_id, m.mentioned_pubkey;
