-- name: check_entries
-- How many entries there are.
SELECT count(*) AS entries FROM log;

-- name: check_outside
-- Entries that no reader of the log sees: before its beginning or after its head.
SELECT committed_id FROM log WHERE committed_id < 1
OR committed_id > (SELECT committed_id FROM head) ORDER BY committed_id LIMIT 1000;

-- name: check_channels
-- Up to where the history of each channel is hidden.
SELECT stream, history_floor FROM channels_channel;

-- name: check_channel_messages
-- Channel messages and how far their stored states go.
SELECT message, stream, history_serial, through FROM channels_message;

-- name: check_channel_versions
-- Which entries are versions of which message.
SELECT message, committed_id FROM channels_version;

-- name: check_event_partitions
-- Which events are in which partition.
SELECT partition, committed_id FROM sync_event_partitions;

-- name: check_archived_events
-- Events whose bodies are in the archive.
SELECT committed_id FROM sync_events_archive;

-- name: check_emptied_events
-- Events whose bodies are no longer in the log.
SELECT committed_id FROM log WHERE stream = 'sync' AND body IS NULL
AND committed_id <= (SELECT committed_id FROM head);

-- name: check_snapshots
-- Stored states of partitions.
SELECT partition, state, committed_id, model_version, digest FROM sync_snapshots;

-- name: check_keys
-- Keys; of those of a mesh also their stored responses.
SELECT scope, key, committed_id, available, first_seen_at,
       CASE WHEN scope >= 'mesh/' AND scope < 'mesh0' THEN outcome END AS outcome
FROM dedupe;

-- name: check_deliveries
-- Deliveries, finished and not.
SELECT broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, status, created_at
FROM mesh_delivery_queue;

-- name: check_mentions
-- Mentions.
SELECT broker_message_id, mentioned_pubkey, mesh_id FROM mesh_mention_index;

-- name: check_tombstones
-- Messages that are gone.
SELECT broker_message_id, mesh_id FROM mesh_message_tombstone;

-- name: check_meshes
-- How long each mesh remembers ids.
SELECT id, dedupe_retention_mode, dedupe_retention_days FROM mesh_setting;
