-- name: sync_add_partition
-- One event in one partition.
INSERT INTO sync_event_partitions (partition, committed_id) VALUES (?, ?);

-- name: sync_positions
-- Where the next events of a partition are.
SELECT committed_id FROM sync_event_partitions
WHERE partition = ? AND committed_id > ? AND committed_id <= ? ORDER BY committed_id LIMIT ?;

-- name: sync_partitions_between
-- Names of partitions in a range, both ends excluded: one look into the index for each (sync 21.2).
WITH RECURSIVE named (partition) AS (
  SELECT min(partition) FROM sync_event_partitions WHERE partition > ?1 AND partition < ?2
  UNION ALL
  SELECT (SELECT min(p.partition) FROM sync_event_partitions p
          WHERE p.partition > named.partition AND p.partition < ?2)
  FROM named WHERE named.partition IS NOT NULL
)
SELECT partition FROM named WHERE partition IS NOT NULL LIMIT ?3;

-- name: sync_event
-- Events by their positions, a JSON array; bodies that were pruned come from the archive (sync D57). CROSS
-- keeps the order of the array, so that reading may end where a page is full.
SELECT l.committed_id, l.committed_at, coalesce(l.body, a.body)
FROM json_each(?) AS named CROSS JOIN log l ON l.committed_id = named.value
LEFT JOIN sync_events_archive a USING (committed_id);

-- name: sync_last_event
-- The last sync event at or before a position: the watermark of a cycle (sync D38).
SELECT committed_id FROM log WHERE stream = 'sync' AND committed_id <= ?
ORDER BY stream_serial DESC LIMIT 1;

-- name: sync_snapshot
-- The stored state of one partition.
SELECT state, committed_id, model_version, digest FROM sync_snapshots WHERE partition = ?;

-- name: sync_snapshot_within
-- The same, if it is of a model version, as of no later position, and not too large.
SELECT state, committed_id, digest FROM sync_snapshots
WHERE partition = ? AND model_version = ? AND committed_id BETWEEN 1 AND ? AND length(state) <= ?;

-- name: sync_put_snapshot
-- A newer state of one partition; never an older one.
INSERT INTO sync_snapshots (partition, state, committed_id, created_at, model_version, digest, seal)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, seal(?1, ?2, ?3, ?4, ?5, ?6))
ON CONFLICT (partition) DO UPDATE SET state = excluded.state, committed_id = excluded.committed_id,
  created_at = excluded.created_at, model_version = excluded.model_version, digest = excluded.digest,
  seal = excluded.seal
WHERE excluded.committed_id >= sync_snapshots.committed_id;

-- name: sync_setting
-- One stored number.
SELECT value FROM sync_settings WHERE name = ?;

-- name: sync_put_setting
-- Store one number.
INSERT INTO sync_settings (name, value, seal) VALUES (?1, ?2, seal(?1, ?2))
ON CONFLICT (name) DO UPDATE SET value = excluded.value, seal = excluded.seal;

-- name: sync_prunable
-- Events after a position whose every partition has a snapshot at or beyond them; their bodies may go.
SELECT l.committed_id, l.stream_serial FROM log l
WHERE l.stream = 'sync' AND l.stream_serial > ? AND l.body IS NOT NULL AND l.committed_id <= ?
  AND NOT EXISTS (
    SELECT 1 FROM sync_event_partitions p LEFT JOIN sync_snapshots s USING (partition)
    WHERE p.committed_id = l.committed_id AND coalesce(s.committed_id, 0) < p.committed_id)
ORDER BY l.stream_serial LIMIT ?;

-- name: sync_archived
-- The kept body of a pruned event.
SELECT body FROM sync_events_archive WHERE committed_id = ?;

-- name: sync_archive
-- Keep the body where sync still reads it.
INSERT INTO sync_events_archive (committed_id, body)
SELECT committed_id, body FROM log WHERE committed_id = ? AND body IS NOT NULL
ON CONFLICT (committed_id) DO NOTHING;
