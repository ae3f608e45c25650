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

-- name: channels_too_old
-- Versions between two positions that were committed before a time and still have their content.
SELECT committed_id, stream, stream_serial, entity, kind, length(body) FROM log
WHERE committed_id > ? AND committed_id <= ? AND surface = 'channels' AND body IS NOT NULL AND committed_at < ?
ORDER BY committed_id LIMIT ?;

-- name: channels_end
-- The last version of a message that is kept, whether it is being streamed, and the size of its data.
SELECT (SELECT max(committed_id) FROM channels_version WHERE message = ?1),
       coalesce((SELECT is_open FROM channels_message WHERE message = ?1), 0),
       coalesce((SELECT size_bytes FROM channels_message WHERE message = ?1), 0);
