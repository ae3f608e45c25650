-- name: channels_message_before
-- The last message of a channel up to a history serial.
SELECT (SELECT message FROM channels_message WHERE stream = ? AND history_serial <= ?
        ORDER BY history_serial DESC LIMIT 1);

-- name: channels_newest
-- The last entries of a channel, the newest first, without what they say.
SELECT stream_serial, entity FROM log WHERE stream = ? ORDER BY stream_serial DESC LIMIT ?;

-- name: channels_last_version
-- Where the last version of a message is that is kept.
SELECT l.stream_serial FROM channels_version v JOIN log l ON l.committed_id = v.committed_id
WHERE v.message = ? ORDER BY v.committed_id DESC LIMIT 1;

-- name: channels_create
-- Whether a message was ever created in a channel.
SELECT 1 FROM log WHERE committed_id = ?2 AND stream = ?1 AND entity = ?3;

-- name: channels_written_by
-- The messages of an app that an actor wrote to, between two positions.
SELECT DISTINCT stream, CAST(substr(entity, -20) AS INTEGER) FROM log
WHERE committed_id > ?3 AND committed_id <= ?4 AND surface = 'channels' AND actor = ?2
  AND substr(stream, 1, length(?1)) = ?1;

-- name: channels_add_erasure
-- Something is to be erased; what is erased already is looked at once more.
INSERT INTO channels_erasure (stream, actor, message, through, searched, step, requested_at, requested_by,
                              reason, seal)
VALUES (?1, ?2, ?3, ?4, 0, 0, ?5, ?6, ?7, seal(?1, ?2, ?3, ?4, 0, 0, ?5, ?6, ?7))
ON CONFLICT (stream, actor, message) DO UPDATE SET through = max(through, excluded.through), step = 0,
  requested_at = excluded.requested_at, requested_by = excluded.requested_by, reason = excluded.reason,
  seal = seal(stream, actor, message, max(through, excluded.through), searched, 0, excluded.requested_at,
              excluded.requested_by, excluded.reason);

-- name: channels_note_searched
-- How far the log was searched for what an actor wrote.
UPDATE channels_erasure SET searched = ?3,
  seal = seal(stream, actor, message, through, ?3, step, requested_at, requested_by, reason)
WHERE stream = ?1 AND actor = ?2 AND message = 0 AND searched < ?3;

-- name: channels_note_step
-- How far an erasure has come, unless more was asked for meanwhile.
UPDATE channels_erasure SET step = ?5,
  seal = seal(stream, actor, message, through, searched, ?5, requested_at, requested_by, reason)
WHERE stream = ?1 AND actor = ?2 AND message = ?3 AND through = ?4 AND step = ?5 - 1;

-- name: channels_erasures_at
-- Erasures that have come so far and no further.
SELECT stream, actor, message, through, searched, step FROM channels_erasure
WHERE step < 2 AND step = ? ORDER BY stream, actor, message LIMIT ?;

-- name: channels_erasure
-- One erasure.
SELECT stream, actor, message, through, searched, step FROM channels_erasure
WHERE stream = ? AND actor = ? AND message = ?;

-- name: channels_erased
-- Whether a message is erased.
SELECT 1 FROM channels_erasure
WHERE stream = ?1 AND actor = '' AND (message = ?2 OR (message = 0 AND through >= ?2)) LIMIT 1;

-- name: channels_versions_to_empty
-- Versions of a message.
SELECT v.message, l.stream, l.committed_id, l.stream_serial
FROM channels_version v JOIN log l ON l.committed_id = v.committed_id
WHERE v.message = ? ORDER BY v.committed_id LIMIT ?;

-- name: channels_messages_to_empty
-- The first messages of a channel up to one of them, and their versions.
SELECT m.message, ?1, l.committed_id, l.stream_serial
FROM (SELECT message FROM channels_message WHERE stream = ?1 AND message <= ?2
      ORDER BY history_serial LIMIT ?3) AS m
LEFT JOIN channels_version v ON v.message = m.message
LEFT JOIN log l ON l.committed_id = v.committed_id
ORDER BY m.message, v.committed_id LIMIT ?3;
