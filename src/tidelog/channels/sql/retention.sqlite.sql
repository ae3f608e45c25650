-- name: channels_expired_keys
-- Keys of channels whose time is over, a few at a time, by the index of times and not by that of keys.
SELECT scope, key FROM dedupe
WHERE expires_at <= ? AND substr(scope, 1, 9) = 'channels/' ORDER BY expires_at LIMIT ?;

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
