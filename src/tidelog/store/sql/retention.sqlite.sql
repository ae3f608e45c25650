-- name: retention_through
-- Up to which position a walk along the log has removed what it is to remove.
SELECT through FROM retention WHERE name = ?;

-- name: note_retention
-- It has come further; never back.
INSERT INTO retention AS r (name, through, seal) VALUES (?1, ?2, seal(?1, ?2))
ON CONFLICT (name) DO UPDATE SET through = max(r.through, excluded.through),
  seal = seal(r.name, max(r.through, excluded.through));

-- name: committed_at
-- When an entry was committed.
SELECT committed_at FROM log WHERE committed_id = ?;

-- name: last_before
-- The last entry between two positions that was committed before a time; times never fall along the log.
SELECT max(committed_id) FROM log WHERE committed_id > ? AND committed_id <= ? AND committed_at < ?;
