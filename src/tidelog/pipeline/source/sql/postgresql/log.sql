-- name: begin_reading
-- One moment for all that follows.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: end_reading
-- Let go of that moment.
COMMIT;

-- name: head
-- Where the log ends, and in which incarnation.
SELECT log_id, committed_id, digest, committed_at,
       (SELECT id FROM tidelog.incarnation WHERE id <> '' ORDER BY number DESC LIMIT 1) AS incarnation
FROM tidelog.head;

-- name: incarnations
-- The continuations of the log that are known; one without a name is that of a backup nobody serves.
SELECT id, began, at, number FROM tidelog.incarnation WHERE id <> '' ORDER BY number;

-- name: digest_at
-- The digest of one entry: what tells this log from another with the same ids.
SELECT digest FROM tidelog.log WHERE committed_id = $1;

-- name: content_bytes
-- Bytes of content in a range of ids, read without the content.
SELECT (coalesce(sum(octet_length(body)), 0) + coalesce(sum(octet_length(data)), 0))::bigint AS bytes
FROM tidelog.log WHERE committed_id > $1 AND committed_id <= $2 AND ($3::text = '' OR surface = $3::text);

-- name: entries
-- The entries of a range of ids, of one surface or of all. What sync's retention has moved to its
-- archive comes from there (sync D57).
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       coalesce(body, CASE WHEN stream = 'sync' THEN
         (SELECT kept.body FROM tidelog.sync_events_archive kept WHERE kept.committed_id = log.committed_id) END
       ) AS body,
       data, body_digest, digest
FROM tidelog.log WHERE committed_id > $1 AND committed_id <= $2 AND ($3::text = '' OR surface = $3::text)
ORDER BY committed_id;

-- name: entries_without_content
-- The same without their content.
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       body_digest, digest
FROM tidelog.log WHERE committed_id > $1 AND committed_id <= $2 AND ($3::text = '' OR surface = $3::text)
ORDER BY committed_id;

-- name: entries_of_stream
-- A page of one stream in a range of ids: at most $5 entries after serial $4, and none after $6
-- bytes of content. Lengths are read without the content.
WITH page AS (
  SELECT committed_id, sum(coalesce(octet_length(body), 0) + coalesce(octet_length(data), 0))
           OVER (ORDER BY stream_serial ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM (SELECT * FROM tidelog.log WHERE stream = $3 AND stream_serial > $4 AND committed_id > $1
          AND committed_id <= $2 ORDER BY stream_serial LIMIT $5) AS named
)
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       coalesce(body, CASE WHEN stream = 'sync' THEN
         (SELECT kept.body FROM tidelog.sync_events_archive kept WHERE kept.committed_id = log.committed_id) END
       ) AS body,
       data, body_digest, digest
FROM tidelog.log JOIN page USING (committed_id)
WHERE coalesce(before, 0) <= $6::bigint ORDER BY stream_serial;

-- name: entries_without_content_of_stream
-- The same without their content, which is then not counted.
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       body_digest, digest
FROM tidelog.log WHERE stream = $3 AND stream_serial > $4 AND committed_id > $1 AND committed_id <= $2
ORDER BY stream_serial LIMIT $5 + 0 * $6::bigint;
