-- name: mesh_due
-- What can be leased to recipients now, oldest first, and how large it is.
SELECT named.number, found.*
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
  WITH ORDINALITY AS named (mesh_id, recipient_pubkey, at, most, number),
LATERAL (
  SELECT q.broker_message_id, q.history_id,
         coalesce(octet_length(l.body), 0) + coalesce(octet_length(l.data), 0)
  FROM tidelog.mesh_delivery_queue q
  JOIN tidelog.log l ON l.stream = 'mesh/' || q.mesh_id AND l.stream_serial = q.history_id
    AND l.body IS NOT NULL
  WHERE q.mesh_id = named.mesh_id AND q.recipient_pubkey = named.recipient_pubkey AND q.channel = 'push'
  AND q.status IN ('pending', 'claimed')
  AND CASE q.status WHEN 'pending' THEN q.next_attempt_at ELSE q.claim_expires_at END <= named.at
  ORDER BY q.history_id LIMIT named.most
) AS found ORDER BY named.number, found.history_id;

-- name: mesh_waiting
-- Whether anything can be leased to recipients now.
SELECT named.number, 1
FROM unnest($1::text[], $2::text[], $3::bigint[])
  WITH ORDINALITY AS named (mesh_id, recipient_pubkey, at, number)
WHERE EXISTS (
  SELECT 1 FROM tidelog.mesh_delivery_queue q
  WHERE q.mesh_id = named.mesh_id AND q.recipient_pubkey = named.recipient_pubkey AND q.channel = 'push'
  AND q.status IN ('pending', 'claimed')
  AND CASE q.status WHEN 'pending' THEN q.next_attempt_at ELSE q.claim_expires_at END <= named.at);

-- name: mesh_recipients
-- Members whom messages have not been pushed to yet.
SELECT named.number, q.recipient_pubkey
FROM unnest($1::text[]) WITH ORDINALITY AS named (broker_message_id, number)
JOIN tidelog.mesh_delivery_queue q USING (broker_message_id)
WHERE q.channel = 'push' AND q.status = 'pending';

-- name: mesh_delivery
-- The states of deliveries.
SELECT named.number, q.mesh_id, q.status, q.claim_id, q.attempts
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
  WITH ORDINALITY AS named (broker_message_id, recipient_pubkey, channel, endpoint_id, number)
JOIN tidelog.mesh_delivery_queue q USING (broker_message_id, recipient_pubkey, channel, endpoint_id);

-- name: mesh_claim_delivery
-- Leases; none is given while another one holds.
UPDATE tidelog.mesh_delivery_queue q SET status = 'claimed', attempts = q.attempts + 1,
  claim_id = named.claim_id, claimed_at = named.at, claim_expires_at = named.expires_at,
  next_attempt_at = named.expires_at,
  seal = tidelog.seal(json_build_array(
    q.broker_message_id, q.recipient_pubkey, q.channel, q.endpoint_id, q.mesh_id, q.history_id, q.created_at,
    'claimed', q.attempts + 1, named.expires_at, q.last_error, named.at, named.claim_id, named.expires_at,
    q.delivered_at))
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])
  AS named (broker_message_id, recipient_pubkey, channel, endpoint_id, claim_id, at, expires_at)
WHERE q.broker_message_id = named.broker_message_id AND q.recipient_pubkey = named.recipient_pubkey
AND q.channel = named.channel AND q.endpoint_id = named.endpoint_id
AND q.status IN ('pending', 'claimed') AND (q.status = 'pending' OR q.claim_expires_at <= named.at);

-- name: mesh_finish_delivery
-- What became of leases; without one nothing changes. A row that waits again has forgotten its claim.
UPDATE tidelog.mesh_delivery_queue q SET status = named.status, next_attempt_at = named.next_attempt_at,
  last_error = named.last_error, delivered_at = named.delivered_at, claim_expires_at = NULL,
  claim_id = CASE named.status WHEN 'pending' THEN NULL ELSE q.claim_id END,
  seal = tidelog.seal(json_build_array(
    q.broker_message_id, q.recipient_pubkey, q.channel, q.endpoint_id, q.mesh_id, q.history_id, q.created_at,
    named.status, q.attempts, named.next_attempt_at, named.last_error, q.claimed_at,
    CASE named.status WHEN 'pending' THEN NULL ELSE q.claim_id END, NULL, named.delivered_at))
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[],
            $9::bigint[])
  AS named (broker_message_id, recipient_pubkey, channel, endpoint_id, claim_id, status, next_attempt_at,
            last_error, delivered_at)
WHERE q.broker_message_id = named.broker_message_id AND q.recipient_pubkey = named.recipient_pubkey
AND q.channel = named.channel AND q.endpoint_id = named.endpoint_id
AND q.status = 'claimed' AND q.claim_id = named.claim_id;

-- name: mesh_expired_leases
-- Leases that have ended, a few at a time.
SELECT 1, broker_message_id, recipient_pubkey, channel, endpoint_id FROM tidelog.mesh_delivery_queue
WHERE status = 'claimed' AND claim_expires_at <= ($1::bigint[])[1]
ORDER BY claim_expires_at LIMIT ($2::bigint[])[1];

-- name: mesh_reap_delivery
-- Leases have ended without an acknowledgement.
UPDATE tidelog.mesh_delivery_queue q SET status = 'pending', next_attempt_at = named.at,
  last_error = 'lease_expired', claim_id = NULL, claim_expires_at = NULL,
  seal = tidelog.seal(json_build_array(
    q.broker_message_id, q.recipient_pubkey, q.channel, q.endpoint_id, q.mesh_id, q.history_id, q.created_at,
    'pending', q.attempts, named.at, 'lease_expired', q.claimed_at, NULL, NULL, q.delivered_at))
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
  AS named (broker_message_id, recipient_pubkey, channel, endpoint_id, at)
WHERE q.broker_message_id = named.broker_message_id AND q.recipient_pubkey = named.recipient_pubkey
AND q.channel = named.channel AND q.endpoint_id = named.endpoint_id
AND q.status = 'claimed' AND q.claim_expires_at <= named.at;

-- name: mesh_bury_delivery
-- Deliveries that will not be tried again.
UPDATE tidelog.mesh_delivery_queue q SET status = 'dead', last_error = named.last_error,
  claim_id = NULL, claim_expires_at = NULL,
  seal = tidelog.seal(json_build_array(
    q.broker_message_id, q.recipient_pubkey, q.channel, q.endpoint_id, q.mesh_id, q.history_id, q.created_at,
    'dead', q.attempts, q.next_attempt_at, named.last_error, q.claimed_at, NULL, NULL, q.delivered_at))
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
  AS named (broker_message_id, recipient_pubkey, channel, endpoint_id, last_error)
WHERE q.broker_message_id = named.broker_message_id AND q.recipient_pubkey = named.recipient_pubkey
AND q.channel = named.channel AND q.endpoint_id = named.endpoint_id
AND q.status IN ('pending', 'claimed');

-- name: mesh_end_recipient
-- Some are gone, and get nothing up to a message. Of several notes of one the last one counts.
INSERT INTO tidelog.mesh_ended_recipient (mesh_id, recipient_pubkey, reason, through, seal)
SELECT DISTINCT ON (mesh_id, recipient_pubkey) mesh_id, recipient_pubkey, reason, through,
       tidelog.seal(json_build_array(mesh_id, recipient_pubkey, reason, through))
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[])
  WITH ORDINALITY AS new (mesh_id, recipient_pubkey, reason, through, number)
ORDER BY mesh_id, recipient_pubkey, number DESC
ON CONFLICT (mesh_id, recipient_pubkey) DO UPDATE
SET reason = excluded.reason, through = excluded.through, seal = excluded.seal;

-- name: mesh_ended_recipients
-- Those who are gone and whose deliveries may be open, a few at a time.
SELECT 1, mesh_id, recipient_pubkey, reason, through FROM tidelog.mesh_ended_recipient
LIMIT ($1::bigint[])[1];

-- name: mesh_open_deliveries
-- What recipients have not got up to a message, a few at a time.
SELECT named.number, found.*
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
  WITH ORDINALITY AS named (mesh_id, recipient, through, most, number),
LATERAL (
  SELECT q.broker_message_id FROM tidelog.mesh_delivery_queue q
  WHERE q.mesh_id = named.mesh_id AND q.recipient_pubkey = named.recipient AND q.channel = 'push'
  AND q.history_id <= named.through AND q.status IN ('pending', 'claimed')
  ORDER BY q.history_id LIMIT named.most
) AS found;

-- name: mesh_forget_recipient
-- All deliveries of some who are gone are closed.
DELETE FROM tidelog.mesh_ended_recipient r
USING unnest($1::text[], $2::text[], $3::bigint[]) AS named (mesh_id, recipient, through)
WHERE r.mesh_id = named.mesh_id AND r.recipient_pubkey = named.recipient AND r.through = named.through;

-- name: mesh_endpoints_due
-- Endpoints after an id that have something to get now.
SELECT 1, w.id FROM tidelog.mesh_webhook w
WHERE w.id > ($1::text[])[1] AND w.disabled_at IS NULL AND EXISTS (
  SELECT 1 FROM tidelog.mesh_delivery_queue q
  WHERE q.channel = 'webhook' AND q.endpoint_id = w.id AND q.status IN ('pending', 'claimed')
  AND q.next_attempt_at <= ($2::bigint[])[1])
ORDER BY w.id LIMIT ($3::bigint[])[1];

-- name: mesh_webhook_due
-- What endpoints are to get now.
SELECT named.number, found.*
FROM unnest($1::text[], $2::bigint[], $3::bigint[])
  WITH ORDINALITY AS named (endpoint_id, at, most, number),
LATERAL (
  SELECT q.broker_message_id, q.history_id, q.attempts FROM tidelog.mesh_delivery_queue q
  WHERE q.channel = 'webhook' AND q.endpoint_id = named.endpoint_id AND q.status IN ('pending', 'claimed')
  AND q.next_attempt_at <= named.at AND (q.status = 'pending' OR q.claim_expires_at <= named.at)
  ORDER BY q.next_attempt_at, q.history_id LIMIT named.most
) AS found;

-- name: mesh_webhook_target
-- Where messages of endpoints go, unless they are disabled.
SELECT named.number, w.mesh_id, s.slug, w.url, w.secret
FROM unnest($1::text[]) WITH ORDINALITY AS named (id, number)
JOIN tidelog.mesh_webhook w ON w.id = named.id AND w.disabled_at IS NULL
JOIN tidelog.mesh_setting s ON s.id = w.mesh_id;

-- name: mesh_disable_webhook
-- Endpoints said that they are gone.
UPDATE tidelog.mesh_webhook w SET disabled_at = named.at,
  seal = tidelog.seal(json_build_array(w.id, w.mesh_id, w.topic, w.url, w.secret, w.created_at, named.at))
FROM unnest($1::text[], $2::bigint[]) AS named (id, at) WHERE w.id = named.id AND w.disabled_at IS NULL;

-- name: mesh_end_endpoint
-- What disabled endpoints have not got, they will not get.
UPDATE tidelog.mesh_delivery_queue SET status = 'dead', last_error = 'endpoint_disabled',
  claim_id = NULL, claim_expires_at = NULL,
  seal = tidelog.seal(json_build_array(
    broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at,
    'dead', attempts, next_attempt_at, 'endpoint_disabled', claimed_at, NULL, NULL, delivered_at))
WHERE channel = 'webhook' AND endpoint_id = ANY($1::text[]) AND status IN ('pending', 'claimed');

-- name: mesh_lost_webhook_deliveries
-- Deliveries to endpoints that are gone, written by a send that did not know it yet; a few at a time.
SELECT 1, q.broker_message_id, q.endpoint_id FROM tidelog.mesh_delivery_queue q
WHERE q.channel = 'webhook' AND q.status IN ('pending', 'claimed') AND NOT EXISTS (
  SELECT 1 FROM tidelog.mesh_webhook w WHERE w.id = q.endpoint_id AND w.disabled_at IS NULL)
LIMIT ($1::bigint[])[1];

-- name: mesh_deliveries_page
-- Deliveries after one of them, in the order of their messages.
SELECT 1, broker_message_id, recipient_pubkey, channel, endpoint_id, status, created_at
FROM tidelog.mesh_delivery_queue
WHERE (broker_message_id, recipient_pubkey, channel, endpoint_id)
  > (($1::text[])[1], ($2::text[])[1], ($3::text[])[1], ($4::text[])[1])
ORDER BY broker_message_id, recipient_pubkey, channel, endpoint_id LIMIT ($5::bigint[])[1];

-- name: mesh_remove_delivery
-- Finished deliveries that nobody asks for any more.
DELETE FROM tidelog.mesh_delivery_queue q
USING unnest($1::text[], $2::text[], $3::text[], $4::text[])
  AS named (broker_message_id, recipient_pubkey, channel, endpoint_id)
WHERE q.broker_message_id = named.broker_message_id AND q.recipient_pubkey = named.recipient_pubkey
AND q.channel = named.channel AND q.endpoint_id = named.endpoint_id
AND q.status IN ('delivered', 'dead');

-- name: mesh_page
-- Meshes after an id.
SELECT 1, id, slug, dedupe_retention_mode, dedupe_retention_days, message_retention_days, echo_to_sender,
       rate_limit, rate_window_ms, shortest_window_days, clone_concurrency_policy
FROM tidelog.mesh_setting WHERE id > ($1::text[])[1] ORDER BY id LIMIT ($2::bigint[])[1];

-- name: mesh_too_old
-- Messages of a stream after a position that were accepted before a time and still have their content.
-- Times ascend along a stream, so a page of it tells.
SELECT 1, committed_id, stream_serial, entity, body FROM (
  SELECT committed_id, stream_serial, entity, body, committed_at FROM tidelog.log
  WHERE stream = ($1::text[])[1] AND stream_serial > ($2::bigint[])[1] AND body IS NOT NULL
  ORDER BY stream_serial LIMIT ($4::bigint[])[1]
) AS page WHERE committed_at < ($3::bigint[])[1] ORDER BY stream_serial;

-- name: mesh_add_tombstone
-- Messages whose content is gone.
INSERT INTO tidelog.mesh_message_tombstone (broker_message_id, mesh_id, deleted_at, reason, seal)
SELECT new.*, tidelog.seal(json_build_array(broker_message_id, mesh_id, deleted_at, reason))
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
  AS new (broker_message_id, mesh_id, deleted_at, reason)
ON CONFLICT (broker_message_id) DO NOTHING;

-- name: mesh_expire_deliveries
-- Nobody gets messages any more whose content is gone.
UPDATE tidelog.mesh_delivery_queue SET status = 'dead', last_error = 'retention_expired',
  claim_id = NULL, claim_expires_at = NULL,
  seal = tidelog.seal(json_build_array(
    broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at,
    'dead', attempts, next_attempt_at, 'retention_expired', claimed_at, NULL, NULL, delivered_at))
WHERE broker_message_id = ANY($1::text[]) AND status IN ('pending', 'claimed');

-- name: mesh_expired_keys
-- Ids whose time is over and whose messages nobody waits for, a few at a time.
SELECT 1, d.scope, d.key, convert_from(d.outcome, 'UTF8')::json ->> 'broker_message_id'
FROM tidelog.dedupe d
WHERE d.expires_at < ($1::bigint[])[1] AND d.scope >= 'mesh/' AND d.scope < 'mesh0' AND NOT EXISTS (
  SELECT 1 FROM tidelog.mesh_delivery_queue q
  WHERE q.broker_message_id = convert_from(d.outcome, 'UTF8')::json ->> 'broker_message_id'
  AND q.status IN ('pending', 'claimed'))
ORDER BY d.expires_at LIMIT ($2::bigint[])[1];

-- name: mesh_unfinished
-- Whether somebody still waits for messages.
SELECT named.number, 1
FROM unnest($1::text[]) WITH ORDINALITY AS named (broker_message_id, number)
WHERE EXISTS (
  SELECT 1 FROM tidelog.mesh_delivery_queue q
  WHERE q.broker_message_id = named.broker_message_id AND q.status IN ('pending', 'claimed'));

-- name: mesh_check_keys
-- Ids after one of them with their stored replies, and the entry that each was committed with.
SELECT 1, page.scope, page.key, page.available, page.outcome, l.entity, (l.body IS NOT NULL)::int,
       (t.broker_message_id IS NOT NULL)::int
FROM (
  SELECT d.scope, d.key, d.available, d.outcome, d.committed_id FROM tidelog.dedupe d
  WHERE (d.scope, d.key) > (($1::text[])[1], ($2::text[])[1]) AND d.scope >= 'mesh/' AND d.scope < 'mesh0'
  ORDER BY d.scope, d.key LIMIT ($3::bigint[])[1]
) AS page
LEFT JOIN tidelog.log l ON l.committed_id = page.committed_id AND l.stream = page.scope
LEFT JOIN tidelog.mesh_message_tombstone t ON t.broker_message_id = l.entity
ORDER BY page.scope, page.key;

-- name: mesh_tombstone
-- The tombstones of messages.
SELECT named.number, t.broker_message_id
FROM unnest($1::text[]) WITH ORDINALITY AS named (broker_message_id, number)
JOIN tidelog.mesh_message_tombstone t ON t.broker_message_id = named.broker_message_id;

-- name: mesh_check_entries
-- Entries of all meshes after a position, and whether they have a tombstone.
SELECT 1, page.*, (t.broker_message_id IS NOT NULL)::int FROM (
  SELECT stream, stream_serial, entity, committed_at, kind, ref, body FROM tidelog.log
  WHERE (stream, stream_serial) > (($1::text[])[1], ($2::bigint[])[1])
  AND stream >= 'mesh/' AND stream < 'mesh0'
  ORDER BY stream, stream_serial LIMIT ($3::bigint[])[1]
) AS page LEFT JOIN tidelog.mesh_message_tombstone t ON t.broker_message_id = page.entity
ORDER BY page.stream, page.stream_serial;

-- name: mesh_check_fan_out
-- How many deliveries of each message there are: to members, to endpoints, and to one recipient.
SELECT named.number, count(*) FILTER (WHERE q.channel = 'push'), count(*) FILTER (WHERE q.channel = 'webhook'),
       count(*) FILTER (WHERE q.channel = 'push' AND q.recipient_pubkey = named.recipient)
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS named (message, recipient, number)
LEFT JOIN tidelog.mesh_delivery_queue q ON q.broker_message_id = named.message
GROUP BY named.number;

-- name: mesh_check_mentioned
-- Whom messages mention.
SELECT named.number, m.mentioned_pubkey
FROM unnest($1::text[]) WITH ORDINALITY AS named (message, number)
JOIN tidelog.mesh_mention_index m ON m.broker_message_id = named.message;

-- name: mesh_check_deliveries
-- Unfinished deliveries that are older than a time, after one of them, with their messages.
SELECT 1, q.mesh_id, q.recipient_pubkey, q.channel, q.history_id, q.endpoint_id, q.broker_message_id, l.body
FROM tidelog.mesh_delivery_queue q
LEFT JOIN tidelog.log l ON l.stream = 'mesh/' || q.mesh_id AND l.stream_serial = q.history_id
  AND l.entity = q.broker_message_id
WHERE (q.mesh_id, q.recipient_pubkey, q.channel, q.history_id, q.endpoint_id)
  > (($1::text[])[1], ($2::text[])[1], ($3::text[])[1], ($4::bigint[])[1], ($5::text[])[1])
AND q.status IN ('pending', 'claimed') AND q.created_at < ($6::bigint[])[1]
ORDER BY q.mesh_id, q.recipient_pubkey, q.channel, q.history_id, q.endpoint_id LIMIT ($7::bigint[])[1];

-- name: mesh_check_mentions
-- Mentions after one of them, and whether there is a message or a tombstone.
SELECT 1, m.broker_message_id, m.mentioned_pubkey, m.mesh_id, (l.committed_id IS NOT NULL)::int,
       (t.broker_message_id IS NOT NULL)::int
FROM (
  SELECT broker_message_id, mentioned_pubkey, mesh_id, history_id FROM tidelog.mesh_mention_index
  WHERE (broker_message_id, mentioned_pubkey) > (($1::text[])[1], ($2::text[])[1])
  ORDER BY broker_message_id, mentioned_pubkey LIMIT ($3::bigint[])[1]
) AS m
LEFT JOIN tidelog.log l ON l.stream = 'mesh/' || m.mesh_id AND l.stream_serial = m.history_id
  AND l.entity = m.broker_message_id AND l.body IS NOT NULL
LEFT JOIN tidelog.mesh_message_tombstone t ON t.broker_message_id = m.broker_message_id
ORDER BY m.broker_message_id, m.mentioned_pubkey;
