-- name: check_outside
-- Entries that no reader of the log sees: before its beginning or after its head.
SELECT committed_id FROM tidelog.log WHERE committed_id < 1
OR committed_id > (SELECT committed_id FROM tidelog.head) ORDER BY committed_id LIMIT $1::bigint;

-- name: check_log
-- The entries of a range of ids, what sync's retention moved to its archive from there; and in the same moment
-- whether the log itself has no content, and whether the archive has some.
SELECT log.committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       coalesce(log.body, kept.body) AS body, data, body_digest, digest,
       (log.body IS NULL)::int::bigint AS is_emptied, (kept.committed_id IS NOT NULL)::int::bigint AS is_archived
FROM tidelog.log LEFT
JOIN tidelog.sync_events_archive kept ON kept.committed_id = log.committed_id AND stream = 'sync'
WHERE log.committed_id > $1::bigint AND log.committed_id <= $2::bigint AND ($3::text = '' OR surface = $3::text)
ORDER BY log.committed_id;

-- name: check_log_at
-- The same of the entries at some positions.
SELECT log.committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       coalesce(log.body, kept.body) AS body, data, body_digest, digest,
       (log.body IS NULL)::int::bigint AS is_emptied, (kept.committed_id IS NOT NULL)::int::bigint AS is_archived
FROM json_array_elements_text($1::json) AS named (value) JOIN tidelog.log ON log.committed_id = named.value::bigint
LEFT JOIN tidelog.sync_events_archive kept ON kept.committed_id = log.committed_id AND stream = 'sync';

-- name: check_log_placed
-- The same of the entries at some places of streams.
SELECT log.committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       coalesce(log.body, kept.body) AS body, data, body_digest, digest,
       (log.body IS NULL)::int::bigint AS is_emptied, (kept.committed_id IS NOT NULL)::int::bigint AS is_archived
FROM json_array_elements($1::json) AS named (value)
JOIN tidelog.log ON stream = (named.value->>0) AND stream_serial = (named.value->>1)::bigint
LEFT JOIN tidelog.sync_events_archive kept ON kept.committed_id = log.committed_id AND stream = 'sync';

-- name: check_serials_before
-- Of some streams: the last serial before one of them, or that one, if an entry up to a position has it.
SELECT (named.value->>0) AS stream,
       greatest((SELECT max(stream_serial) FROM tidelog.log
                 WHERE stream = (named.value->>0) AND stream_serial < (named.value->>1)::bigint),
                (SELECT max(stream_serial) FROM tidelog.log
                 WHERE stream = (named.value->>0) AND stream_serial = (named.value->>1)::bigint
                 AND committed_id <= (named.value->>2)::bigint)) AS before
FROM json_array_elements($1::json) AS named (value);

-- name: check_channels
-- Up to where the history of each channel is hidden.
SELECT stream, history_floor FROM tidelog.channels_channel WHERE stream > $1::text ORDER BY stream LIMIT $2::bigint;

-- name: check_channel_messages
-- Channel messages.
SELECT message, stream, history_serial FROM tidelog.channels_message WHERE message > $1::bigint
ORDER BY message LIMIT $2::bigint;

-- name: check_channel_messages_named
-- Some of them.
SELECT message, stream, history_serial
FROM json_array_elements_text($1::json) AS named (value)
JOIN tidelog.channels_message ON message = named.value::bigint;

-- name: check_channel_versions
-- Which entries are versions of which message.
SELECT message, committed_id FROM tidelog.channels_version
WHERE (message, committed_id) > ($1::bigint, $2::bigint) ORDER BY message, committed_id LIMIT $3::bigint;

-- name: check_channel_versions_named
-- Some of them.
SELECT message, committed_id FROM json_array_elements($1::json) AS named (value)
JOIN tidelog.channels_version ON message = (named.value->>0)::bigint AND committed_id = (named.value->>1)::bigint;

-- name: check_channel_versions_first
-- The first that is left of each of some messages.
SELECT named.value::bigint AS message,
       (SELECT min(committed_id) FROM tidelog.channels_version WHERE message = named.value::bigint) AS committed_id
FROM json_array_elements_text($1::json) AS named (value);

-- name: check_event_partitions
-- Which events are in which partition.
SELECT partition, committed_id FROM tidelog.sync_event_partitions
WHERE (partition, committed_id) > ($1::text, $2::bigint) ORDER BY partition, committed_id LIMIT $3::bigint;

-- name: check_event_partitions_named
-- Some of them.
SELECT partition, committed_id FROM json_array_elements($1::json) AS named (value)
JOIN tidelog.sync_event_partitions ON partition = (named.value->>0) AND committed_id = (named.value->>1)::bigint;

-- name: check_events_of_partition
-- The events of one partition up to a position, in order.
SELECT partition, committed_id FROM tidelog.sync_event_partitions
WHERE partition = $1::text AND committed_id > $2::bigint AND committed_id <= $3::bigint
ORDER BY committed_id LIMIT $4::bigint;

-- name: check_archived_events
-- Events whose bodies are in the archive.
SELECT committed_id FROM tidelog.sync_events_archive WHERE committed_id > $1::bigint
ORDER BY committed_id LIMIT $2::bigint;

-- name: check_archived_events_named
-- Some of them.
SELECT committed_id
FROM json_array_elements_text($1::json) AS named (value)
JOIN tidelog.sync_events_archive ON committed_id = named.value::bigint;

-- name: check_snapshots
-- Stored states of partitions, without the states.
SELECT partition, committed_id, model_version, digest FROM tidelog.sync_snapshots
WHERE partition > $1::text ORDER BY partition LIMIT $2::bigint;

-- name: check_snapshot_states
-- The states of some partitions.
SELECT partition, state, committed_id, model_version, digest FROM json_array_elements_text($1::json) AS named (value)
JOIN tidelog.sync_snapshots ON partition = named.value;

-- name: check_keys
-- Keys; of those of a mesh also their stored responses.
SELECT scope, key, committed_id, fingerprint, owner, available, first_seen_at, expires_at,
       CASE WHEN scope >= 'mesh/' AND scope < 'mesh0' THEN outcome END AS outcome
FROM tidelog.dedupe WHERE (scope, key) > ($1::text, $2::text) ORDER BY scope, key LIMIT $3::bigint;

-- name: check_keys_named
-- Some of them.
SELECT scope, key, committed_id, fingerprint, owner, available, first_seen_at, expires_at,
       CASE WHEN scope >= 'mesh/' AND scope < 'mesh0' THEN outcome END AS outcome
FROM json_array_elements($1::json) AS named (value)
JOIN tidelog.dedupe ON scope = (named.value->>0) AND dedupe.key = (named.value->>1);

-- name: check_keys_at
-- Those of channels that name some positions.
SELECT scope, dedupe.key AS key, committed_id, fingerprint, owner, available, first_seen_at, expires_at,
       NULL::bytea AS outcome
FROM json_array_elements_text($1::json) AS named (value)
JOIN tidelog.dedupe ON committed_id = named.value::bigint AND scope >= 'channels/' AND scope < 'channels0';

-- name: check_deliveries
-- Deliveries, finished and not.
SELECT broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, status, attempts,
       last_error, created_at, delivered_at
FROM tidelog.mesh_delivery_queue
WHERE (broker_message_id, recipient_pubkey, channel, endpoint_id) > ($1::text, $2::text, $3::text, $4::text)
ORDER BY broker_message_id, recipient_pubkey, channel, endpoint_id LIMIT $5::bigint;

-- name: check_deliveries_named
-- Those of some messages.
SELECT broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, status, attempts,
       last_error, created_at, delivered_at
FROM json_array_elements_text($1::json) AS named (value)
JOIN tidelog.mesh_delivery_queue ON broker_message_id = named.value;

-- name: check_mentions
-- Mentions.
SELECT broker_message_id, mentioned_pubkey, mesh_id, history_id, created_at FROM tidelog.mesh_mention_index
WHERE (broker_message_id, mentioned_pubkey) > ($1::text, $2::text)
ORDER BY broker_message_id, mentioned_pubkey LIMIT $3::bigint;

-- name: check_mentions_named
-- Those of some messages.
SELECT broker_message_id, mentioned_pubkey, mesh_id, history_id, created_at
FROM json_array_elements_text($1::json) AS named (value)
JOIN tidelog.mesh_mention_index ON broker_message_id = named.value;

-- name: check_tombstones
-- Messages that are gone.
SELECT broker_message_id, mesh_id, deleted_at, reason FROM tidelog.mesh_message_tombstone
WHERE broker_message_id > $1::text ORDER BY broker_message_id LIMIT $2::bigint;

-- name: check_tombstones_named
-- Some of them.
SELECT broker_message_id, mesh_id, deleted_at, reason
FROM json_array_elements_text($1::json) AS named (value)
JOIN tidelog.mesh_message_tombstone ON broker_message_id = named.value;

-- name: check_meshes
-- How long each mesh remembers ids.
SELECT id, dedupe_retention_mode, dedupe_retention_days FROM tidelog.mesh_setting
WHERE id > $1::text ORDER BY id LIMIT $2::bigint;
