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
