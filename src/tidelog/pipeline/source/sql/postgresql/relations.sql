-- name: channel
-- What a channel remembers of itself.
SELECT stream, epoch, history_serial, history_floor, replay_floor FROM tidelog.channels_channel;

-- name: channel_message
-- Messages that are still there; one that is purged is not.
SELECT message, stream, history_serial FROM tidelog.channels_message;

-- name: channel_version
-- Versions that are still there, each with the message it belongs to.
SELECT message, committed_id FROM tidelog.channels_version;

-- name: channel_erasure
-- What was erased of channels: messages, channels up to a message, what actors wrote up to a position.
SELECT stream, actor, message, through FROM tidelog.channels_erasure;

-- name: tombstone
-- Sends that retention took.
SELECT broker_message_id, mesh_id, deleted_at, reason FROM tidelog.mesh_message_tombstone;

-- name: delivery
-- What recipients and webhooks are to get, and how far that is.
SELECT broker_message_id, recipient_pubkey, channel, endpoint_id, mesh_id, history_id, status, attempts,
       last_error, created_at, delivered_at
FROM tidelog.mesh_delivery_queue;

-- name: mention
-- Members mentioned in messages.
SELECT broker_message_id, mentioned_pubkey, mesh_id, history_id, created_at FROM tidelog.mesh_mention_index;

-- name: dedupe
-- Keys under which requests are remembered.
SELECT scope, key, committed_id, fingerprint, owner, available, first_seen_at, expires_at FROM tidelog.dedupe;

-- name: sync_event_partition
-- Which events belong to a partition.
SELECT partition, committed_id FROM tidelog.sync_event_partitions;

-- name: sync_snapshot
-- How far the stored state of each partition goes.
SELECT partition, committed_id, created_at, model_version FROM tidelog.sync_snapshots;

-- name: sync_setting
-- Numbers of the sync surface, such as the model version in use.
SELECT name, value FROM tidelog.sync_settings;
