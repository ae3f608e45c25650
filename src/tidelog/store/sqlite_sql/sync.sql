-- name: sync_add_partition
-- One event in one partition.
INSERT INTO sync_event_partitions (partition, committed_id) VALUES (?, ?);

-- name: sync_page
-- Events of one partition in order; bodies that were pruned come from the archive (D57).
SELECT l.committed_id, l.committed_at, coalesce(l.body, a.body)
FROM sync_event_partitions p JOIN log l USING (committed_id)
LEFT JOIN sync_events_archive a USING (committed_id)
WHERE p.partition = ? AND p.committed_id > ? AND p.committed_id <= ?
ORDER BY p.committed_id LIMIT ?;

-- name: sync_last_event
-- The last sync event at or before a position: the watermark of a cycle (D38).
SELECT committed_id FROM log WHERE stream = 'sync' AND committed_id <= ?
ORDER BY stream_serial DESC LIMIT 1;

-- name: sync_snapshot
-- The stored state of one partition.
SELECT state, committed_id, model_version FROM sync_snapshots WHERE partition = ?;

-- name: sync_put_snapshot
-- A newer state of one partition.
INSERT INTO sync_snapshots (partition, state, committed_id, created_at, model_version)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (partition) DO UPDATE SET state = excluded.state, committed_id = excluded.committed_id,
  created_at = excluded.created_at, model_version = excluded.model_version;

-- name: sync_setting
-- One stored number.
SELECT value FROM sync_settings WHERE name = ?;

-- name: sync_put_setting
-- Store one number.
INSERT INTO sync_settings (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
