-- name: probe_stream
-- The state of one stream.
SELECT stream, puts, weight, last_committed_id FROM probe_stream WHERE stream = ?;

-- name: put_probe_stream
-- The state after a put.
INSERT INTO probe_stream (stream, puts, weight, last_committed_id) VALUES (?, ?, ?, ?)
ON CONFLICT (stream) DO UPDATE SET puts = excluded.puts, weight = excluded.weight,
  last_committed_id = excluded.last_committed_id;
