-- name: retention_through
-- Up to which positions walks along the log have removed what they are to remove.
SELECT named.number, r.through
FROM unnest($1::text[]) WITH ORDINALITY AS named (name, number) JOIN tidelog.retention r USING (name);

-- name: note_retention
-- They have come further; never back.
INSERT INTO tidelog.retention AS r (name, through, seal)
SELECT name, max(through), tidelog.seal(json_build_array(name, max(through)))
FROM unnest($1::text[], $2::bigint[]) AS named (name, through) GROUP BY name
ON CONFLICT (name) DO UPDATE SET through = greatest(r.through, excluded.through),
  seal = tidelog.seal(json_build_array(r.name, greatest(r.through, excluded.through)));

-- name: committed_at
-- When entries were committed.
SELECT named.number, l.committed_at
FROM unnest($1::bigint[]) WITH ORDINALITY AS named (committed_id, number)
JOIN tidelog.log l USING (committed_id);

-- name: last_before
-- The last entry between two positions that was committed before a time; times never fall along the log.
SELECT named.number, (SELECT max(l.committed_id) FROM tidelog.log l
                      WHERE l.committed_id > named.after AND l.committed_id <= named.through
                      AND l.committed_at < named.before)
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[])
  WITH ORDINALITY AS named (after, through, before, number);

-- name: channels_too_old
-- Versions between two positions that were committed before a time and still have their content.
SELECT named.number, found.*
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
  WITH ORDINALITY AS named (after, through, before, most, number),
LATERAL (
  SELECT l.committed_id, l.stream, l.stream_serial, l.entity, l.kind, octet_length(l.body) FROM tidelog.log l
  WHERE l.committed_id > named.after AND l.committed_id <= named.through AND l.surface = 'channels'
    AND l.body IS NOT NULL AND l.committed_at < named.before
  ORDER BY l.committed_id LIMIT named.most
) AS found ORDER BY named.number, found.committed_id;

-- name: channels_end
-- The last versions of messages that are kept, whether they are being streamed, and the size of their data.
SELECT named.number,
       (SELECT max(v.committed_id) FROM tidelog.channels_version v WHERE v.message = named.message),
       coalesce(m.is_open, 0), coalesce(m.size_bytes, 0)
FROM unnest($1::bigint[]) WITH ORDINALITY AS named (message, number)
LEFT JOIN tidelog.channels_message m USING (message);
