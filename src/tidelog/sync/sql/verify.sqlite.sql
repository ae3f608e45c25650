-- name: sync_check_events
-- Events after one of them, with their archived bodies, and what is remembered of their ids.
SELECT l.stream_serial, l.committed_id, l.entity, l.actor, l.committed_at, l.body, a.body, l.body_digest,
       d.scope, d.key, d.committed_id, d.fingerprint, d.owner, d.outcome, d.available, d.first_seen_at,
       d.expires_at
FROM (SELECT * FROM log WHERE stream = 'sync' AND stream_serial > ? ORDER BY stream_serial LIMIT ?) l
LEFT JOIN sync_events_archive a ON a.committed_id = l.committed_id
LEFT JOIN dedupe d ON d.scope = 'sync' AND d.key = l.entity
ORDER BY l.stream_serial;

-- name: sync_check_in_partition
-- Whether an event is in a partition.
SELECT 1 FROM sync_event_partitions WHERE partition = ? AND committed_id = ?;

-- name: sync_check_partitions
-- Events of partitions after one of them, with their bodies.
SELECT p.partition, p.committed_id, coalesce(l.body, a.body)
FROM (SELECT partition, committed_id FROM sync_event_partitions WHERE (partition, committed_id) > (?, ?)
      ORDER BY partition, committed_id LIMIT ?) p
LEFT JOIN log l ON l.committed_id = p.committed_id AND l.stream = 'sync'
LEFT JOIN sync_events_archive a ON a.committed_id = p.committed_id
ORDER BY p.partition, p.committed_id;
