-- name: wait_for_locks
-- A checkpoint or a recovery by the server holds a reader up for a moment; it must not fail it.
PRAGMA busy_timeout = 5000;

-- name: begin_reading
-- One moment for all that follows.
BEGIN;

-- name: end_reading
-- Let go of that moment.
COMMIT;

-- name: head
-- Where the log ends, and in which incarnation.
SELECT log_id, committed_id, digest, committed_at,
       (SELECT id FROM incarnation WHERE id <> '' ORDER BY number DESC LIMIT 1) AS incarnation
FROM head;

-- name: incarnations
-- The continuations of the log that are known; one without a name is that of a backup nobody serves.
SELECT id, began, at, number FROM incarnation WHERE id <> '' ORDER BY number;

-- name: digest_at
-- The digest of one entry: what tells this log from another with the same ids.
SELECT digest FROM log WHERE committed_id = ?;

-- name: content_bytes
-- Bytes of content in a range of ids, read without the content.
SELECT coalesce(sum(octet_length(body)), 0) + coalesce(sum(octet_length(data)), 0) AS bytes
FROM log WHERE committed_id > ?1 AND committed_id <= ?2 AND (?3 = '' OR surface = ?3);

-- name: entries
-- The entries of a range of ids, of one surface or of all. What sync's retention has moved to its
-- archive comes from there (sync D57).
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       coalesce(body, CASE WHEN stream = 'sync' THEN
         (SELECT kept.body FROM sync_events_archive kept WHERE kept.committed_id = log.committed_id) END
       ) AS body,
       data, body_digest, digest
FROM log WHERE committed_id > ?1 AND committed_id <= ?2 AND (?3 = '' OR surface = ?3)
ORDER BY committed_id;

-- name: entries_without_content
-- The same without their content.
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       body_digest, digest
FROM log WHERE committed_id > ?1 AND committed_id <= ?2 AND (?3 = '' OR surface = ?3)
ORDER BY committed_id;

-- name: entries_of_stream
-- A page of one stream in a range of ids: at most ?5 entries after serial ?4, and none after ?6
-- bytes of content. The index of the stream also holds the ids.
WITH page AS (
  SELECT committed_id, sum(coalesce(octet_length(body), 0) + coalesce(octet_length(data), 0))
           OVER (ORDER BY stream_serial ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM (SELECT * FROM log WHERE stream = ?3 AND stream_serial > ?4 AND committed_id > ?1
          AND committed_id <= ?2 ORDER BY stream_serial LIMIT ?5)
)
SELECT log.committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       coalesce(body, CASE WHEN stream = 'sync' THEN
         (SELECT kept.body FROM sync_events_archive kept WHERE kept.committed_id = log.committed_id) END
       ) AS body,
       data, body_digest, digest
FROM page CROSS JOIN log USING (committed_id)
WHERE coalesce(before, 0) <= ?6 ORDER BY stream_serial;

-- name: entries_without_content_of_stream
-- The same without their content, which is then not counted.
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       body_digest, digest
FROM log WHERE stream = ?3 AND stream_serial > ?4 AND committed_id > ?1 AND committed_id <= ?2
ORDER BY stream_serial LIMIT ?5 + 0 * ?6;
