-- name: probe_stream
-- The state of the named streams.
SELECT named.number, s.stream, s.puts, s.weight, s.last_committed_id
FROM unnest($1::text[]) WITH ORDINALITY AS named (stream, number) JOIN probe_stream s USING (stream);

-- name: put_probe_stream
-- The state after each put; of several for one stream in a batch the last counts.
INSERT INTO probe_stream (stream, puts, weight, last_committed_id)
SELECT DISTINCT ON (stream) stream, puts, weight, last_committed_id
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS new (stream, puts, weight, last_committed_id)
ORDER BY stream, last_committed_id DESC
ON CONFLICT (stream) DO UPDATE SET puts = excluded.puts, weight = excluded.weight,
  last_committed_id = excluded.last_committed_id;
