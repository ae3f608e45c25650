-- name: sync_check_events
-- Events after one of them, with their archived bodies, and what is remembered of their ids.
SELECT 1, l.stream_serial, l.committed_id, l.entity, l.actor, l.committed_at, l.body, a.body, l.body_digest,
       d.scope, d.key, d.committed_id, d.fingerprint, d.owner, d.outcome, d.available, d.first_seen_at,
       d.expires_at
FROM (SELECT * FROM tidelog.log WHERE stream = 'sync' AND stream_serial > ($1::bigint[])[1]
      ORDER BY stream_serial LIMIT ($2::bigint[])[1]) AS l
LEFT JOIN tidelog.sync_events_archive a ON a.committed_id = l.committed_id
LEFT JOIN tidelog.dedupe d ON d.scope = 'sync' AND d.key = l.entity
ORDER BY l.stream_serial;

-- name: sync_check_in_partition
-- Whether events are in partitions.
SELECT named.number, 1
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (partition, committed_id, number)
JOIN tidelog.sync_event_partitions p USING (partition, committed_id);

-- name: sync_check_partitions
-- Events of partitions after one of them, with their bodies.
SELECT 1, p.partition, p.committed_id, coalesce(l.body, a.body)
FROM (SELECT partition, committed_id FROM tidelog.sync_event_partitions
      WHERE (partition, committed_id) > (($1::text[])[1], ($2::bigint[])[1])
      ORDER BY partition, committed_id LIMIT ($3::bigint[])[1]) AS p
LEFT JOIN tidelog.log l ON l.committed_id = p.committed_id AND l.stream = 'sync'
LEFT JOIN tidelog.sync_events_archive a ON a.committed_id = p.committed_id
ORDER BY p.partition, p.committed_id;
