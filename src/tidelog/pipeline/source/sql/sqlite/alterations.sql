-- Rows beside the log: those that came with the entries of a range of positions, and those that changed since, by
-- a range of the numbers of alterations. Ranges begin after the first value and go through the second.

-- name: alteration_numbers
-- The first alteration that is kept and the last one.
SELECT coalesce((SELECT min(number) FROM alteration), 0) AS first,
       coalesce((SELECT max(number) FROM alteration), 0) AS last;

-- name: altered_relations
-- Of what anything is not as it was.
SELECT DISTINCT relation FROM alteration WHERE number > ?1 AND number <= ?2;

-- name: alterations
-- What is not as it was, in the order of commits; at most so many.
SELECT number, relation, position, scope, name FROM alteration
WHERE number > ?1 AND number <= ?2 ORDER BY number LIMIT ?3;

-- name: delivery_exists
-- Whether there is any.
SELECT EXISTS (SELECT 1 FROM mesh_delivery_queue) AS "exists";

-- name: delivery_of_entries
-- What recipients and webhooks were to get.
SELECT q.broker_message_id, q.recipient_pubkey, q.channel, q.endpoint_id, q.mesh_id, q.history_id, q.status,
       q.attempts, q.last_error, q.created_at, q.delivered_at
FROM log l CROSS JOIN mesh_delivery_queue q ON q.broker_message_id = l.entity
WHERE l.committed_id > ?1 AND l.committed_id <= ?2 AND l.surface = 'mesh';

-- name: delivery_of_alterations
-- All deliveries of messages of which one has changed; of entries through the third value.
SELECT q.broker_message_id, q.recipient_pubkey, q.channel, q.endpoint_id, q.mesh_id, q.history_id, q.status,
       q.attempts, q.last_error, q.created_at, q.delivered_at
FROM (SELECT DISTINCT a.name, a.scope, a.position FROM alteration a
      WHERE a.number > ?1 AND a.number <= ?2 AND a.relation = 'delivery') AS a
CROSS JOIN log l ON l.stream = 'mesh/' || a.scope AND l.stream_serial = a.position AND l.committed_id <= ?3
CROSS JOIN mesh_delivery_queue q ON q.broker_message_id = a.name;

-- name: delivery_times
-- When the messages were committed of which a delivery has changed.
SELECT DISTINCT l.committed_at
FROM alteration a CROSS JOIN log l ON l.stream = 'mesh/' || a.scope AND l.stream_serial = a.position
WHERE a.number > ?1 AND a.number <= ?2 AND a.relation = 'delivery';

-- name: mention_exists
-- Whether there is any.
SELECT EXISTS (SELECT 1 FROM mesh_mention_index) AS "exists";

-- name: mention_of_entries
-- Members mentioned in messages.
SELECT m.broker_message_id, m.mentioned_pubkey, m.mesh_id, m.history_id, m.created_at
FROM log l CROSS JOIN mesh_mention_index m ON m.broker_message_id = l.entity
WHERE l.committed_id > ?1 AND l.committed_id <= ?2 AND l.surface = 'mesh';

-- name: mention_of_alterations
-- All mentions of messages of which one is gone; of entries through the third value.
SELECT m.broker_message_id, m.mentioned_pubkey, m.mesh_id, m.history_id, m.created_at
FROM (SELECT DISTINCT a.name, a.scope, a.position FROM alteration a
      WHERE a.number > ?1 AND a.number <= ?2 AND a.relation = 'mention') AS a
CROSS JOIN log l ON l.stream = 'mesh/' || a.scope AND l.stream_serial = a.position AND l.committed_id <= ?3
CROSS JOIN mesh_mention_index m ON m.broker_message_id = a.name;

-- name: tombstone_exists
-- Whether there is any.
SELECT EXISTS (SELECT 1 FROM mesh_message_tombstone) AS "exists";

-- name: tombstone_of_entries
-- Which sends retention took.
SELECT t.broker_message_id, t.mesh_id, t.deleted_at, t.reason
FROM log l CROSS JOIN mesh_message_tombstone t ON t.broker_message_id = l.entity
WHERE l.committed_id > ?1 AND l.committed_id <= ?2 AND l.surface = 'mesh';

-- name: tombstone_of_alterations
-- Which sends retention took since.
SELECT t.broker_message_id, t.mesh_id, t.deleted_at, t.reason
FROM (SELECT DISTINCT a.name FROM alteration a
      WHERE a.number > ?1 AND a.number <= ?2 AND a.relation = 'tombstone') AS a
CROSS JOIN mesh_message_tombstone t ON t.broker_message_id = a.name;

-- name: dedupe_exists
-- Whether there is any.
SELECT EXISTS (SELECT 1 FROM dedupe) AS "exists";

-- name: dedupe_of_entries
-- Keys of requests.
SELECT d.scope, d.key, d.committed_id, d.fingerprint, d.owner, d.available, d.first_seen_at, d.expires_at
FROM dedupe d WHERE d.committed_id > ?1 AND d.committed_id <= ?2;

-- name: dedupe_of_alterations
-- All keys of entries of which one has changed, through the third value, and those of no entry that did.
SELECT d.scope, d.key, d.committed_id, d.fingerprint, d.owner, d.available, d.first_seen_at, d.expires_at
FROM (SELECT DISTINCT a.position FROM alteration a
      WHERE a.number > ?1 AND a.number <= ?2 AND a.relation = 'dedupe' AND a.position > 0 AND a.position <= ?3) AS a
CROSS JOIN dedupe d ON d.committed_id = a.position
UNION ALL
SELECT d.scope, d.key, d.committed_id, d.fingerprint, d.owner, d.available, d.first_seen_at, d.expires_at
FROM (SELECT DISTINCT a.scope, a.name FROM alteration a
      WHERE a.number > ?1 AND a.number <= ?2 AND a.relation = 'dedupe' AND a.position = 0) AS a
CROSS JOIN dedupe d ON d.scope = a.scope AND d.key = a.name AND d.committed_id IS NULL;

-- name: dedupe_of_no_entry
-- Keys of responses without an entry after one of them; at most so many.
SELECT d.scope, d.key, d.committed_id, d.fingerprint, d.owner, d.available, d.first_seen_at, d.expires_at
FROM dedupe d WHERE d.committed_id IS NULL AND (d.scope, d.key) > (?1, ?2)
ORDER BY d.scope, d.key LIMIT ?3;

-- name: channel_message_of_entries
-- Messages that are still there.
SELECT message FROM channels_message WHERE message > ?1 AND message <= ?2;

-- name: sync_event_partition_of_entries
-- Which events belong to a partition.
SELECT partition, committed_id FROM sync_event_partitions WHERE committed_id > ?1 AND committed_id <= ?2;
