-- name: check_outside
-- Entries that no reader of the log sees: before its beginning or after its head.
SELECT committed_id FROM log WHERE committed_id < 1
OR committed_id > (SELECT committed_id FROM head) ORDER BY committed_id LIMIT ?1;

-- name: check_log
-- The entries of a range of ids, what sync's retention moved to its archive from there; and in the same moment
-- whether the log itself has no content, and whether the archive has some.
SELECT log.committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       coalesce(log.body, kept.body) AS body, data, body_digest, digest,
       log.body IS NULL AS is_emptied, kept.committed_id IS NOT NULL AS is_archived
FROM log LEFT JOIN sync_events_archive kept ON kept.committed_id = log.committed_id AND stream = 'sync'
WHERE log.committed_id > ?1 AND log.committed_id <= ?2 AND (?3 = '' OR surface = ?3)
ORDER BY log.committed_id;

-- name: check_log_at
-- The same of the entries at some positions.
SELECT log.committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       coalesce(log.body, kept.body) AS body, data, body_digest, digest,
       log.body IS NULL AS is_emptied, kept.committed_id IS NOT NULL AS is_archived
FROM json_each(?1) AS named JOIN log ON log.committed_id = named.value
LEFT JOIN sync_events_archive kept ON kept.committed_id = log.committed_id AND stream = 'sync';

-- name: check_log_placed
-- The same of the entries at some places of streams.
SELECT log.committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       coalesce(log.body, kept.body) AS body, data, body_digest, digest,
       log.body IS NULL AS is_emptied, kept.committed_id IS NOT NULL AS is_archived
FROM json_each(?1) AS named JOIN log ON stream = (named.value ->> 0) AND stream_serial = (named.value ->> 1)
LEFT JOIN sync_events_archive kept ON kept.committed_id = log.committed_id AND stream = 'sync';

-- name: check_serials_before
-- Of some streams: the last serial before one of them, or that one, if an entry up to a position has it.
SELECT (named.value ->> 0) AS stream,
       coalesce((SELECT max(stream_serial) FROM log
                 WHERE stream = (named.value ->> 0) AND stream_serial = (named.value ->> 1)
                 AND committed_id <= (named.value ->> 2)),
                (SELECT max(stream_serial) FROM log
                 WHERE stream = (named.value ->> 0) AND stream_serial < (named.value ->> 1))) AS before
FROM json_each(?1) AS named;

-- name: check_channels
-- Up to where the history of each channel is hidden.
SELECT stream, history_floor FROM channels_channel WHERE stream > ?1 ORDER BY stream LIMIT ?2;

-- name: check_channel_messages
-- Channel messages.
SELECT message, stream, history_serial FROM channels_message WHERE message > ?1 ORDER BY message LIMIT ?2;

-- name: check_channel_messages_named
-- Some of them.
SELECT message, stream, history_serial FROM json_each(?1) AS named JOIN channels_message ON message = named.value;

-- name: check_channel_versions
-- Which entries are versions of which message.
SELECT message, committed_id FROM channels_version
WHERE (message, committed_id) > (?1, ?2) ORDER BY message, committed_id LIMIT ?3;

-- name: check_channel_versions_named
-- Some of them.
SELECT message, committed_id FROM json_each(?1) AS named
JOIN channels_version ON message = (named.value ->> 0) AND committed_id = (named.value ->> 1);

-- name: check_channel_versions_first
-- The first that is left of each of some messages.
SELECT named.value AS message,
       (SELECT min(committed_id) FROM channels_version WHERE message = named.value) AS committed_id
FROM json_each(?1) AS named;

-- name: check_event_partitions
-- Which events are in which partition.
SELECT partition, committed_id FROM sync_event_partitions
WHERE (partition, committed_id) > (?1, ?2) ORDER BY partition, committed_id LIMIT ?3;

-- name: check_event_partitions_named
-- Some of them.
SELECT partition, committed_id FROM json_each(?1) AS named
JOIN sync_event_partitions ON partition = (named.value ->> 0) AND committed_id = (named.value ->> 1);

-- name: check_events_of_partition
-- The events of one partition up to a position, in order.
SELECT partition, committed_id FROM sync_event_partitions
WHERE partition = ?1 AND committed_id > ?2 AND committed_id <= ?3 ORDER BY committed_id LIMIT ?4;

-- name: check_archived_events
-- Events whose bodies are in the archive.
SELECT committed_id FROM sync_events_archive WHERE committed_id > ?1 ORDER BY committed_id LIMIT ?2;

-- name: check_archived_events_named
-- Some of them.
SELECT committed_id FROM json_each(?1) AS named JOIN sync_events_archive ON committed_id = named.value;

-- name: check_snapshots
-- Stored states of partitions, without the states.
SELECT partition, committed_id, model_version, digest FROM sync_snapshots
WHERE partition > ?1 ORDER BY partition LIMIT ?2;

-- name: check_snapshot_states
-- The states of some partitions.
SELECT partition, state, committed_id, model_version, digest FROM json_each(?1) AS named
JOIN sync_snapshots ON partition = named.value;

-- name: check_keys
-- Keys; of those of a mesh also their stored responses.
SELECT scope, key, committed_id, fingerprint, owner, available, first_seen_at, expires_at,
       CASE WHEN scope >= 'mesh/' AND scope < 'mesh0' THEN outcome END AS outcome
FROM dedupe WHERE (scope, key) > (?1, ?2) ORDER BY scope, key LIMIT ?3;

-- name: check_keys_named
-- Some of them.
SELECT scope, dedupe.key AS key, committed_id, fingerprint, owner, available, first_seen_at, expires_at,
       CASE WHEN scope >= 'mesh/' AND scope < 'mesh0' THEN outcome END AS outcome
FROM json_each(?1) AS named JOIN dedupe ON scope = (named.value ->> 0) AND dedupe.key = (named.value ->> 1);

-- name: check_keys_at
-- Those of channels that name some positions.
SELECT scope, dedupe.key AS key, committed_id, fingerprint, owner, available, first_seen_at, expires_at,
       NULL AS outcome
FROM json_each(?1) AS named
JOIN dedupe ON committed_id = named.value AND scope >= 'channels/' AND scope < 'channels0';

-- name: check_deliveries
-- Deliveries, finished and not.
SELECT broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, status, attempts,
       last_error, created_at, delivered_at
FROM mesh_delivery_queue
WHERE (broker_message_id, recipient_pubkey, channel, endpoint_id) > (?1, ?2, ?3, ?4)
ORDER BY broker_message_id, recipient_pubkey, channel, endpoint_id LIMIT ?5;

-- name: check_deliveries_named
-- Those of some messages.
SELECT broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, status, attempts,
       last_error, created_at, delivered_at
FROM json_each(?1) AS named JOIN mesh_delivery_queue ON broker_message_id = named.value;

-- name: check_mentions
-- Mentions.
SELECT broker_message_id, mentioned_pubkey, mesh_id, history_id, created_at FROM mesh_mention_index
WHERE (broker_message_id, mentioned_pubkey) > (?1, ?2)
ORDER BY broker_message_id, mentioned_pubkey LIMIT ?3;

-- name: check_mentions_named
-- Those of some messages.
SELECT broker_message_id, mentioned_pubkey, mesh_id, history_id, created_at
FROM json_each(?1) AS named JOIN mesh_mention_index ON broker_message_id = named.value;

-- name: check_tombstones
-- Messages that are gone.
SELECT broker_message_id, mesh_id, deleted_at, reason FROM mesh_message_tombstone
WHERE broker_message_id > ?1 ORDER BY broker_message_id LIMIT ?2;

-- name: check_tombstones_named
-- Some of them.
SELECT broker_message_id, mesh_id, deleted_at, reason
FROM json_each(?1) AS named JOIN mesh_message_tombstone ON broker_message_id = named.value;

-- name: check_meshes
-- How long each mesh remembers ids.
SELECT id, dedupe_retention_mode, dedupe_retention_days FROM mesh_setting
WHERE id > ?1 ORDER BY id LIMIT ?2;
