-- name: inbox_receive
-- Store a delivery unless this sender's id was stored before, in whichever of the two tables. A remembered id
-- without a sender is taken for this one unless the message is from after the other had arrived.
INSERT INTO inbox (id, client_message_id, broker_message_id, mesh, topic, sender_pubkey, sender_name, body,
                   meta, received_at, reply_to_id, history_id, priority, created_at, mention)
SELECT :id, :client_message_id, :broker_message_id, :mesh, :topic, :sender_pubkey, :sender_name, :body,
       :meta, :received_at, :reply_to_id, :history_id, :priority, :created_at, :mention
WHERE NOT EXISTS (
  SELECT 1 FROM inbox_seen
  WHERE client_message_id = :client_message_id
    AND (sender_pubkey = :sender_pubkey AND mesh = :mesh
         OR sender_pubkey = '' AND received_at >= :not_older_than)
)
ON CONFLICT (client_message_id, sender_pubkey, mesh) DO NOTHING RETURNING id;

-- name: inbox_last
-- The newest time a row was received at.
SELECT max(coalesce((SELECT max(received_at) FROM inbox), 0), coalesce((SELECT max(received_at) FROM inbox_seen), 0));

-- name: inbox_newest
-- The position of the last row.
SELECT received_at, id FROM inbox ORDER BY received_at DESC, id DESC LIMIT 1;

-- name: inbox_page
-- Rows after a position, in the order they were received in.
SELECT id, client_message_id, broker_message_id, mesh, topic, sender_pubkey, sender_name, body,
       meta, received_at, reply_to_id, history_id, priority, created_at, mention
FROM inbox
WHERE (received_at, id) > (:after_at, :after_id) AND received_at >= :since
  AND (:topic IS NULL OR topic = :topic)
  AND (:sender IS NULL OR sender_pubkey = :sender OR sender_name = :sender)
ORDER BY received_at, id LIMIT :limit;

-- name: inbox_senders
-- Whose the newest message under each name is; of the columns without a function, SQLite gives those of that row.
SELECT sender_name, sender_pubkey FROM (
  SELECT sender_name, sender_pubkey, max(id) AS newest FROM inbox GROUP BY sender_name
) ORDER BY newest DESC LIMIT ?;

-- name: inbox_count
-- How many rows are kept.
SELECT count(*) FROM inbox;

-- name: inbox_remember
-- Keep the ids of rows that are too old, and whose they were.
INSERT INTO inbox_seen (client_message_id, sender_pubkey, mesh, received_at)
SELECT client_message_id, sender_pubkey, mesh, received_at FROM inbox
WHERE received_at < ? ORDER BY received_at, id LIMIT ?
ON CONFLICT (client_message_id, sender_pubkey, mesh) DO NOTHING;

-- name: inbox_remove
-- Remove the rows whose ids were kept.
DELETE FROM inbox
WHERE id IN (SELECT id FROM inbox WHERE received_at < ? ORDER BY received_at, id LIMIT ?);

-- name: inbox_forget
-- Ids beyond the horizon.
DELETE FROM inbox_seen
WHERE (client_message_id, sender_pubkey, mesh) IN (
  SELECT client_message_id, sender_pubkey, mesh FROM inbox_seen WHERE received_at < ? LIMIT ?
);

-- name: inbox_state
-- One remembered number.
SELECT value FROM inbox_state WHERE key = ?;

-- name: inbox_set_state
-- Remember a number.
INSERT INTO inbox_state (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: inbox_raise_state
-- Remember a number if it is greater.
INSERT INTO inbox_state (key, value) VALUES (?, ?)
ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value);
