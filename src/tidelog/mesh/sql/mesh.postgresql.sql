-- name: mesh_by_slug
-- Meshes under their public names.
SELECT named.number, id, m.slug, dedupe_retention_mode, dedupe_retention_days, message_retention_days,
       echo_to_sender, rate_limit, rate_window_ms, shortest_window_days, clone_concurrency_policy
FROM unnest($1::text[]) WITH ORDINALITY AS named (slug, number)
JOIN tidelog.mesh_setting m ON m.slug = named.slug;

-- name: mesh_by_id
-- Meshes.
SELECT named.number, m.id, slug, dedupe_retention_mode, dedupe_retention_days, message_retention_days,
       echo_to_sender, rate_limit, rate_window_ms, shortest_window_days, clone_concurrency_policy
FROM unnest($1::text[]) WITH ORDINALITY AS named (id, number)
JOIN tidelog.mesh_setting m ON m.id = named.id;

-- name: mesh_add
-- New meshes.
INSERT INTO tidelog.mesh_setting (id, slug, dedupe_retention_mode, dedupe_retention_days,
  message_retention_days, echo_to_sender, rate_limit, rate_window_ms, shortest_window_days,
  clone_concurrency_policy, created_at, seal)
SELECT new.*, tidelog.seal(json_build_array(
         id, slug, mode, days, message_days, echo, rate_limit, rate_window_ms, policy, created_at, shortest))
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
            $8::bigint[], $9::bigint[], $10::text[], $11::bigint[])
  AS new (id, slug, mode, days, message_days, echo, rate_limit, rate_window_ms, shortest, policy, created_at);

-- name: mesh_change
-- Other settings of meshes. Of several changes of one mesh the last one counts.
UPDATE tidelog.mesh_setting m SET dedupe_retention_mode = new.mode, dedupe_retention_days = new.days,
  message_retention_days = new.message_days, echo_to_sender = new.echo, rate_limit = new.rate_limit,
  rate_window_ms = new.rate_window_ms, shortest_window_days = new.shortest,
  clone_concurrency_policy = new.policy,
  seal = tidelog.seal(json_build_array(
    m.id, m.slug, new.mode, new.days, new.message_days, new.echo, new.rate_limit, new.rate_window_ms,
    new.policy, m.created_at, new.shortest))
FROM (
  SELECT DISTINCT ON (id) * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[],
                                        $6::bigint[], $7::bigint[], $8::bigint[], $9::text[])
    WITH ORDINALITY AS given
      (id, mode, days, message_days, echo, rate_limit, rate_window_ms, shortest, policy, number)
  ORDER BY id, number DESC
) AS new WHERE m.id = new.id;

-- name: mesh_counts
-- How many members, topics, queues, webhooks and open invites meshes have.
SELECT named.number,
       (SELECT count(*) FROM tidelog.mesh_member m WHERE m.mesh_id = named.id AND revoked_at IS NULL),
       (SELECT count(*) FROM tidelog.mesh_topic t WHERE t.mesh_id = named.id),
       (SELECT count(*) FROM tidelog.mesh_queue q WHERE q.mesh_id = named.id),
       (SELECT count(*) FROM tidelog.mesh_webhook w WHERE w.mesh_id = named.id),
       (SELECT count(*) FROM tidelog.mesh_invite i
        WHERE i.mesh_id = named.id AND i.used_at IS NULL AND i.expires_at > named.at)
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (id, at, number);

-- name: mesh_made_by
-- How many topics and queues of a mesh members have made.
SELECT named.number,
       (SELECT count(*) FROM tidelog.mesh_topic t
        WHERE t.mesh_id = named.mesh_id AND t.created_by = named.member_id),
       (SELECT count(*) FROM tidelog.mesh_queue q
        WHERE q.mesh_id = named.mesh_id AND q.created_by = named.member_id)
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS named (mesh_id, member_id, number);

-- name: mesh_member
-- Members by their keys.
SELECT named.number, m.id, m.name, m.revoked_at
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS named (mesh_id, member_pubkey, number)
JOIN tidelog.mesh_member m ON m.mesh_id = named.mesh_id AND m.member_pubkey = named.member_pubkey;

-- name: mesh_member_named
-- Who has names.
SELECT named.number, m.member_pubkey
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS named (mesh_id, name, number)
JOIN tidelog.mesh_member m
  ON m.mesh_id = named.mesh_id AND m.name = named.name AND m.revoked_at IS NULL;

-- name: mesh_members
-- The members of a mesh after a key, in the order of their keys.
SELECT named.number, found.*
FROM unnest($1::text[], $2::text[], $3::bigint[])
  WITH ORDINALITY AS named (mesh_id, after, most, number),
LATERAL (
  SELECT m.member_pubkey, m.name FROM tidelog.mesh_member m
  WHERE m.mesh_id = named.mesh_id AND m.member_pubkey > named.after AND m.revoked_at IS NULL
  ORDER BY m.member_pubkey LIMIT named.most
) AS found ORDER BY named.number, found.member_pubkey;

-- name: mesh_add_member
-- New members.
INSERT INTO tidelog.mesh_member (id, mesh_id, member_pubkey, name, created_at, seal)
SELECT new.*, tidelog.seal(json_build_array(id, mesh_id, member_pubkey, name, created_at, NULL))
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
  AS new (id, mesh_id, member_pubkey, name, created_at);

-- name: mesh_revoke_member
-- Members are none any more; their keys stay known.
UPDATE tidelog.mesh_member m SET revoked_at = named.at,
  seal = tidelog.seal(json_build_array(m.id, m.mesh_id, m.member_pubkey, m.name, m.created_at, named.at))
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS named (mesh_id, member_pubkey, at)
WHERE m.mesh_id = named.mesh_id AND m.member_pubkey = named.member_pubkey AND m.revoked_at IS NULL;

-- name: mesh_remove_subscriptions
-- Whoever is no member receives nothing.
DELETE FROM tidelog.mesh_topic_subscription s
USING unnest($1::text[], $2::text[]) AS named (mesh_id, member_pubkey)
WHERE s.mesh_id = named.mesh_id AND s.member_pubkey = named.member_pubkey;

-- name: mesh_invite
-- Invites by their hashes.
SELECT named.number, i.mesh_id, i.expires_at, i.used_at
FROM unnest($1::bytea[]) WITH ORDINALITY AS named (invite_hash, number)
JOIN tidelog.mesh_invite i ON i.invite_hash = named.invite_hash;

-- name: mesh_add_invite
-- New invites.
INSERT INTO tidelog.mesh_invite (invite_hash, mesh_id, created_at, expires_at, seal)
SELECT new.*, tidelog.seal(json_build_array(
         encode(invite_hash, 'hex'), mesh_id, created_at, expires_at, NULL, NULL))
FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::bigint[])
  AS new (invite_hash, mesh_id, created_at, expires_at);

-- name: mesh_invites
-- Invites of meshes that can still be used.
SELECT named.number, i.invite_hash, i.created_at, i.expires_at
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (mesh_id, at, number)
JOIN tidelog.mesh_invite i ON i.mesh_id = named.mesh_id AND i.used_at IS NULL AND i.expires_at > named.at
ORDER BY named.number, i.created_at, i.invite_hash;

-- name: mesh_remove_invite
-- Invites are taken back.
DELETE FROM tidelog.mesh_invite i USING unnest($1::bytea[]) AS named (invite_hash)
WHERE i.invite_hash = named.invite_hash;

-- name: mesh_use_invite
-- Invites are used up.
UPDATE tidelog.mesh_invite i SET used_at = named.at, used_by = named.by,
  seal = tidelog.seal(json_build_array(
    encode(i.invite_hash, 'hex'), i.mesh_id, i.created_at, i.expires_at, named.at, named.by))
FROM unnest($1::bytea[], $2::bigint[], $3::text[]) AS named (invite_hash, at, by)
WHERE i.invite_hash = named.invite_hash;

-- name: mesh_remove_invites
-- Invites that can no longer be used.
DELETE FROM tidelog.mesh_invite i USING unnest($1::text[], $2::bigint[]) AS named (mesh_id, at)
WHERE i.mesh_id = named.mesh_id AND (i.used_at IS NOT NULL OR i.expires_at <= named.at);

-- name: mesh_topic
-- The subscribers of topics, and who made them; one row without a key if one has none, no row if there is no such
-- topic.
SELECT named.number, s.member_pubkey, t.created_by
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS named (mesh_id, name, number)
JOIN tidelog.mesh_topic t ON t.mesh_id = named.mesh_id AND t.name = named.name
LEFT JOIN tidelog.mesh_topic_subscription s ON s.mesh_id = t.mesh_id AND s.topic = t.name
ORDER BY named.number, s.member_pubkey;

-- name: mesh_topics
-- The topics of meshes, and whether a member is subscribed to each.
SELECT named.number, t.name, (s.member_pubkey IS NOT NULL)::int
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS named (mesh_id, member_pubkey, number)
JOIN tidelog.mesh_topic t ON t.mesh_id = named.mesh_id
LEFT JOIN tidelog.mesh_topic_subscription s
  ON s.mesh_id = t.mesh_id AND s.topic = t.name AND s.member_pubkey = named.member_pubkey
ORDER BY named.number, t.name;

-- name: mesh_add_topic
-- New topics.
INSERT INTO tidelog.mesh_topic (mesh_id, name, created_at, created_by, seal)
SELECT new.*, tidelog.seal(json_build_array(mesh_id, name, created_at, created_by))
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
  AS new (mesh_id, name, created_at, created_by);

-- name: mesh_remove_topic
-- Topics are gone.
DELETE FROM tidelog.mesh_topic t USING unnest($1::text[], $2::text[]) AS named (mesh_id, name)
WHERE t.mesh_id = named.mesh_id AND t.name = named.name;

-- name: mesh_remove_topic_subscriptions
-- Nobody receives topics that are gone.
DELETE FROM tidelog.mesh_topic_subscription s USING unnest($1::text[], $2::text[]) AS named (mesh_id, topic)
WHERE s.mesh_id = named.mesh_id AND s.topic = named.topic;

-- name: mesh_subscribe
-- Members receive topics from now on.
INSERT INTO tidelog.mesh_topic_subscription (mesh_id, topic, member_pubkey, created_at, seal)
SELECT new.*, tidelog.seal(json_build_array(mesh_id, topic, member_pubkey, created_at))
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[])
  AS new (mesh_id, topic, member_pubkey, created_at);

-- name: mesh_unsubscribe
-- Members no longer receive topics.
DELETE FROM tidelog.mesh_topic_subscription s
USING unnest($1::text[], $2::text[], $3::text[]) AS named (mesh_id, topic, member_pubkey)
WHERE s.mesh_id = named.mesh_id AND s.topic = named.topic AND s.member_pubkey = named.member_pubkey;

-- name: mesh_queue
-- Whether there are queues, and who made them.
SELECT named.number, q.id, q.created_by
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS named (mesh_id, id, number)
JOIN tidelog.mesh_queue q ON q.mesh_id = named.mesh_id AND q.id = named.id;

-- name: mesh_queues
-- The queues of meshes.
SELECT named.number, q.id
FROM unnest($1::text[]) WITH ORDINALITY AS named (mesh_id, number)
JOIN tidelog.mesh_queue q ON q.mesh_id = named.mesh_id ORDER BY named.number, q.id;

-- name: mesh_add_queue
-- New queues.
INSERT INTO tidelog.mesh_queue (mesh_id, id, created_at, created_by, seal)
SELECT new.*, tidelog.seal(json_build_array(mesh_id, id, created_at, created_by))
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
  AS new (mesh_id, id, created_at, created_by);

-- name: mesh_remove_queue
-- Queues are gone.
DELETE FROM tidelog.mesh_queue q USING unnest($1::text[], $2::text[]) AS named (mesh_id, id)
WHERE q.mesh_id = named.mesh_id AND q.id = named.id;

-- name: mesh_webhooks
-- Endpoints that get a message of a topic, or with an empty topic any other message.
SELECT named.number, w.id
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS named (mesh_id, topic, number)
JOIN tidelog.mesh_webhook w
  ON w.mesh_id = named.mesh_id AND w.topic IN ('', named.topic) AND w.disabled_at IS NULL
ORDER BY named.number, w.id;

-- name: mesh_all_webhooks
-- All endpoints of meshes, without their secrets.
SELECT named.number, w.id, w.topic, w.url, w.created_at, w.disabled_at
FROM unnest($1::text[]) WITH ORDINALITY AS named (mesh_id, number)
JOIN tidelog.mesh_webhook w ON w.mesh_id = named.mesh_id ORDER BY named.number, w.id;

-- name: mesh_webhook
-- Whether endpoints are of a mesh.
SELECT named.number, w.id
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS named (mesh_id, id, number)
JOIN tidelog.mesh_webhook w ON w.mesh_id = named.mesh_id AND w.id = named.id;

-- name: mesh_add_webhook
-- New endpoints.
INSERT INTO tidelog.mesh_webhook (id, mesh_id, topic, url, secret, created_at, seal)
SELECT new.*, tidelog.seal(json_build_array(id, mesh_id, topic, url, secret, created_at, NULL))
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])
  AS new (id, mesh_id, topic, url, secret, created_at);

-- name: mesh_remove_webhook
-- Endpoints are gone.
DELETE FROM tidelog.mesh_webhook w USING unnest($1::text[], $2::text[]) AS named (mesh_id, id)
WHERE w.mesh_id = named.mesh_id AND w.id = named.id;

-- name: mesh_end_webhook
-- What endpoints that are gone have not got, they will not get.
UPDATE tidelog.mesh_delivery_queue q SET status = 'dead', last_error = 'endpoint_removed',
  claim_id = NULL, claim_expires_at = NULL,
  seal = tidelog.seal(json_build_array(
    q.broker_message_id, q.recipient_pubkey, q.channel, q.endpoint_id, q.mesh_id, q.history_id, q.created_at,
    'dead', q.attempts, q.next_attempt_at, 'endpoint_removed', q.claimed_at, NULL, NULL, q.delivered_at))
FROM unnest($1::text[], $2::text[]) AS named (mesh_id, id)
WHERE q.mesh_id = named.mesh_id AND q.recipient_pubkey = '' AND q.channel = 'webhook'
AND q.endpoint_id = named.id AND q.status IN ('pending', 'claimed');

-- name: mesh_add_delivery
-- Some are to get messages.
INSERT INTO tidelog.mesh_delivery_queue (broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id,
                                         history_id, created_at, status, attempts, next_attempt_at, seal)
SELECT broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at,
       'pending', 0, created_at, tidelog.seal(json_build_array(
         broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at,
         'pending', 0, created_at, NULL, NULL, NULL, NULL, NULL))
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])
  AS named (broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, created_at);

-- name: mesh_add_mention
-- Messages mention members.
INSERT INTO tidelog.mesh_mention_index
  (broker_message_id, mentioned_pubkey, mesh_id, history_id, created_at, seal)
SELECT new.*, tidelog.seal(json_build_array(
         broker_message_id, mentioned_pubkey, mesh_id, history_id, created_at))
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
  AS new (broker_message_id, mentioned_pubkey, mesh_id, history_id, created_at);

-- name: mesh_dedupe_row
-- The rows of keys, for whoever asks for many at once.
SELECT named.number, d.scope, d.key, d.committed_id, d.fingerprint, d.owner, d.outcome, d.available,
       d.first_seen_at, d.expires_at
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS named (scope, key, number)
JOIN tidelog.dedupe d ON d.scope = named.scope AND d.key = named.key;

-- name: mesh_known_ids
-- The rows of some keys of scopes; those of each are a JSON array.
SELECT named.number, d.scope, d.key, d.committed_id, d.fingerprint, d.owner, d.outcome, d.available,
       d.first_seen_at, d.expires_at
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS named (scope, keys, number)
CROSS JOIN LATERAL json_array_elements_text(named.keys::json) AS asked (key)
JOIN tidelog.dedupe d ON d.scope = named.scope AND d.key = asked.key;

-- name: mesh_history_seq
-- The newest messages of meshes, by their streams.
SELECT named.number, coalesce((SELECT max(stream_serial) FROM tidelog.log l WHERE l.stream = named.stream), 0)
FROM unnest($1::text[]) WITH ORDINALITY AS named (stream, number);

-- name: mesh_history_position
-- Where in the log messages of meshes are, by their streams.
SELECT named.number, l.committed_id
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (stream, stream_serial, number)
JOIN tidelog.log l ON l.stream = named.stream AND l.stream_serial = named.stream_serial;

-- name: mesh_visible
-- Which messages of a stretch of the history a member may see, oldest first, and how large they are.
SELECT named.number, found.*
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
  WITH ORDINALITY AS named (mesh_id, member_pubkey, member_id, after, through, most, number),
LATERAL (
  SELECT l.stream_serial, coalesce(octet_length(l.body), 0) + coalesce(octet_length(l.data), 0)
  FROM tidelog.log l
  WHERE l.stream = 'mesh/' || named.mesh_id AND l.stream_serial > named.after
  AND l.stream_serial <= named.through AND l.body IS NOT NULL
  AND CASE l.kind
      WHEN 'send.topic' THEN EXISTS (
        SELECT 1 FROM tidelog.mesh_topic_subscription s
        WHERE s.mesh_id = named.mesh_id AND s.topic = l.ref AND s.member_pubkey = named.member_pubkey)
      WHEN 'send.dm' THEN l.ref = named.member_pubkey OR l.actor = named.member_id
      ELSE FALSE END
  ORDER BY l.stream_serial LIMIT named.most
) AS found ORDER BY named.number, found.stream_serial;

-- name: mesh_mentions
-- Of the newest mentions of somebody before a history_id, those that a member may see.
SELECT named.number, found.*
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
  WITH ORDINALITY AS named (mesh_id, member_pubkey, member_id, mentioned, before, most, number),
LATERAL (
  SELECT m.history_id, coalesce(octet_length(l.body), 0) + coalesce(octet_length(l.data), 0),
         (l.body IS NOT NULL AND CASE l.kind
          WHEN 'send.topic' THEN EXISTS (
            SELECT 1 FROM tidelog.mesh_topic_subscription s
            WHERE s.mesh_id = named.mesh_id AND s.topic = l.ref AND s.member_pubkey = named.member_pubkey)
          WHEN 'send.dm' THEN l.ref = named.member_pubkey OR l.actor = named.member_id
          ELSE FALSE END)::int
  FROM tidelog.mesh_mention_index m
  JOIN tidelog.log l ON l.stream = 'mesh/' || named.mesh_id AND l.stream_serial = m.history_id
  WHERE m.mesh_id = named.mesh_id AND m.mentioned_pubkey = named.mentioned AND m.history_id < named.before
  ORDER BY m.history_id DESC LIMIT named.most
) AS found ORDER BY named.number, found.history_id DESC;

-- name: mesh_entry
-- Messages as they are stored.
SELECT named.number, l.stream_serial, l.kind, l.entity, l.ref, l.committed_at, l.body, l.data
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (stream, stream_serial, number)
JOIN tidelog.log l ON l.stream = named.stream AND l.stream_serial = named.stream_serial
WHERE l.body IS NOT NULL;

-- name: mesh_take_shares
-- Units of the rate limiter, counted by all nodes together; committed when this is answered.
SELECT number, verdict
FROM mesh.take_shares($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[]);

-- name: mesh_use_tokens
-- Tokens that are used once; one that was used before is not answered.
INSERT INTO tidelog.mesh_used_token (token, expires_at, seal)
SELECT new.*, tidelog.seal(json_build_array(token, expires_at))
FROM unnest($1::text[], $2::bigint[])
  AS new (token, expires_at)
ON CONFLICT DO NOTHING RETURNING 1, token;

-- name: mesh_forget_tokens
-- Tokens that have expired need not be known.
DELETE FROM tidelog.mesh_used_token WHERE expires_at < ($1::bigint[])[1] RETURNING 1;
