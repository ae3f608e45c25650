-- name: channels_channel
-- A channel's counters, its open streams, its last serial, this as of a position, how many messages began after
-- that, and up to which message everything is erased.
SELECT coalesce(c.epoch, 0), coalesce(c.history_serial, 0), coalesce(c.history_floor, 0),
       coalesce(c.replay_floor, 0),
       (SELECT count(*) FROM channels_message WHERE stream = ?1 AND is_open = 1 AND message > coalesce(e.through, 0)),
       coalesce((SELECT max(stream_serial) FROM log WHERE stream = ?1), 0), d.serial,
       (SELECT count(*) FROM log WHERE stream = ?1 AND stream_serial > d.serial
        AND kind IN ('message.create', 'event')), coalesce(e.through, 0)
FROM (SELECT coalesce((SELECT stream_serial FROM log WHERE stream = ?1 AND committed_id <= ?2
                       ORDER BY stream_serial DESC LIMIT 1), 0) AS serial) d
LEFT JOIN channels_channel c ON c.stream = ?1
LEFT JOIN channels_erasure e ON e.stream = ?1 AND e.actor = '' AND e.message = 0;

-- name: channels_note_history
-- The channel's last history serial.
INSERT INTO channels_channel (stream, epoch, history_serial, history_floor, replay_floor)
VALUES (?, 0, ?, 0, 0)
ON CONFLICT (stream) DO UPDATE SET history_serial = max(history_serial, excluded.history_serial);

-- name: channels_set_floors
-- A reset or a purge: how often it was reset, and up to where history and replay are gone.
INSERT INTO channels_channel (stream, epoch, history_serial, history_floor, replay_floor, floors_seal)
VALUES (?1, ?2, 0, ?3, ?4, seal(?1, ?2, ?3, ?4))
ON CONFLICT (stream) DO UPDATE SET epoch = max(epoch, excluded.epoch),
  history_floor = max(history_floor, excluded.history_floor),
  replay_floor = max(replay_floor, excluded.replay_floor),
  floors_seal = seal(stream, max(epoch, excluded.epoch), max(history_floor, excluded.history_floor),
                     max(replay_floor, excluded.replay_floor));

-- name: channels_add_message
-- A new message; its state is its create, until more is folded.
INSERT INTO channels_message (message, stream, history_serial, published_at, is_open, size_bytes, through)
VALUES (?, ?, ?, ?, ?, ?, 0);

-- name: channels_add_version
-- One version of a message.
INSERT INTO channels_version (message, committed_id) VALUES (?, ?);

-- name: channels_fold
-- Whether a message is open after one of its versions; and its state up to that one, if it is given.
UPDATE channels_message SET is_open = ?2, size_bytes = CASE WHEN ?5 IS NULL THEN size_bytes ELSE ?3 END,
  through = CASE WHEN ?5 IS NULL THEN through ELSE ?4 END, state = coalesce(?5, state) WHERE message = ?1;

-- name: channels_message
-- What is stored of one message of a channel.
SELECT through, state FROM channels_message WHERE stream = ? AND message = ?
  AND message > coalesce((SELECT through FROM channels_erasure WHERE stream = ?1 AND actor = '' AND message = 0), 0);

-- name: channels_versions_after
-- Versions of a message, the oldest first.
SELECT l.kind, l.committed_id, l.committed_at, l.stream_serial, l.entity, l.body
FROM channels_version v JOIN log l ON l.committed_id = v.committed_id
WHERE v.message = ? AND v.committed_id > ? AND v.committed_id <= ?
ORDER BY v.committed_id LIMIT ?;

-- name: channels_versions_before
-- Versions of a message that is not erased, the newest first.
SELECT l.kind, l.committed_id, l.committed_at, l.stream_serial, l.entity, l.body
FROM channels_version v JOIN log l ON l.committed_id = v.committed_id
WHERE v.message = ? AND v.committed_id < ?
  AND NOT EXISTS (SELECT 1 FROM channels_erasure e WHERE e.stream = l.stream AND e.actor = ''
                  AND (e.message = v.message OR (e.message = 0 AND e.through >= v.message)))
ORDER BY v.committed_id DESC LIMIT ?;

-- name: channels_history_up
-- Places and sizes of messages of a channel, between serials and times, the oldest first. Times are looked up:
-- no row outside of them is read.
SELECT history_serial, size_bytes FROM channels_message
WHERE stream = ?1
  AND history_serial >= max(?2, coalesce((SELECT history_serial FROM channels_message
        WHERE stream = ?1 AND published_at >= ?4 ORDER BY published_at, history_serial LIMIT 1), 1 << 60))
  AND history_serial <= min(?3, coalesce((SELECT history_serial FROM channels_message
        WHERE stream = ?1 AND published_at <= ?5 ORDER BY published_at DESC, history_serial DESC LIMIT 1), 0))
  AND message > coalesce((SELECT through FROM channels_erasure WHERE stream = ?1 AND actor = '' AND message = 0), 0)
ORDER BY history_serial LIMIT ?6;

-- name: channels_history_down
-- The same, the newest first.
SELECT history_serial, size_bytes FROM channels_message
WHERE stream = ?1
  AND history_serial >= max(?2, coalesce((SELECT history_serial FROM channels_message
        WHERE stream = ?1 AND published_at >= ?4 ORDER BY published_at, history_serial LIMIT 1), 1 << 60))
  AND history_serial <= min(?3, coalesce((SELECT history_serial FROM channels_message
        WHERE stream = ?1 AND published_at <= ?5 ORDER BY published_at DESC, history_serial DESC LIMIT 1), 0))
  AND message > coalesce((SELECT through FROM channels_erasure WHERE stream = ?1 AND actor = '' AND message = 0), 0)
ORDER BY history_serial DESC LIMIT ?6;

-- name: channels_history_rows
-- What is stored of the messages between serials and times, the oldest first.
SELECT message, history_serial, published_at, through, state FROM channels_message
WHERE stream = ? AND history_serial >= ? AND history_serial <= ? AND published_at >= ? AND published_at <= ?
  AND message > coalesce((SELECT through FROM channels_erasure WHERE stream = ?1 AND actor = '' AND message = 0), 0)
ORDER BY history_serial;

-- name: channels_exists
-- Whether a channel has that message.
SELECT 1 FROM channels_message WHERE stream = ? AND message = ?
  AND message > coalesce((SELECT through FROM channels_erasure WHERE stream = ?1 AND actor = '' AND message = 0), 0);

-- name: channels_unfolded
-- The stored states' positions of the messages between two history serials, and what follows them.
SELECT m.message, m.through, l.kind, l.committed_id, l.committed_at, l.stream_serial, l.entity, l.body
FROM channels_message m LEFT JOIN channels_version v ON v.message = m.message AND v.committed_id > m.through
LEFT JOIN log l ON l.committed_id = v.committed_id
WHERE m.stream = ? AND m.history_serial >= ? AND m.history_serial <= ?
  AND m.message > coalesce((SELECT through FROM channels_erasure WHERE stream = ?1 AND actor = '' AND message = 0), 0)
ORDER BY m.message, v.committed_id;

-- name: channels_retained
-- What history holds after a floor and not before a time: sums of stretches, less what the first of them has
-- before. Whatever is erased up to some message lies below the channel's own floor.
WITH first (serial) AS (
  SELECT max(?2 + 1, coalesce((SELECT history_floor FROM channels_channel WHERE stream = ?1), 0) + 1,
             coalesce((SELECT history_serial FROM channels_message WHERE stream = ?1 AND published_at >= ?3
                       ORDER BY published_at, history_serial LIMIT 1), 1 << 60))
), sums (messages, size_bytes) AS (
  SELECT sum(messages), sum(size_bytes) FROM first, channels_stretch
  WHERE stream = ?1 AND width = 65536 AND number > first.serial / 65536
  UNION ALL
  SELECT sum(messages), sum(size_bytes) FROM first, channels_stretch
  WHERE stream = ?1 AND width = 256 AND number >= first.serial / 256
    AND number < (first.serial / 65536 + 1) * 256
  UNION ALL
  SELECT -count(*), -sum(size_bytes) FROM first, channels_message
  WHERE stream = ?1 AND history_serial >= first.serial / 256 * 256 AND history_serial < first.serial
)
SELECT (SELECT coalesce(sum(messages), 0) FROM sums), oldest.history_serial, newest.history_serial,
       oldest.published_at, newest.published_at, (SELECT coalesce(sum(size_bytes), 0) FROM sums)
FROM first
LEFT JOIN channels_message oldest ON oldest.stream = ?1 AND oldest.history_serial =
  (SELECT history_serial FROM channels_message WHERE stream = ?1 AND history_serial >= first.serial
   ORDER BY history_serial LIMIT 1)
LEFT JOIN channels_message newest ON newest.stream = ?1 AND newest.history_serial =
  (SELECT history_serial FROM channels_message WHERE stream = ?1 AND history_serial >= first.serial
   ORDER BY history_serial DESC LIMIT 1);

-- name: channels_serial_before
-- The last history serial that was published before a time.
SELECT coalesce((SELECT history_serial FROM channels_message WHERE stream = ?1 AND published_at < ?2
  AND message > coalesce((SELECT through FROM channels_erasure WHERE stream = ?1 AND actor = '' AND message = 0), 0)
  ORDER BY published_at DESC, history_serial DESC LIMIT 1), 0);

-- name: channels_last_event
-- The creates of the newest messages of a channel, not before a time.
SELECT l.kind, l.committed_id, l.committed_at, l.stream_serial, l.entity, l.body
FROM channels_message m JOIN log l ON l.committed_id = m.message
WHERE m.stream = ?1
  AND m.history_serial >= (SELECT history_serial FROM channels_message
        WHERE stream = ?1 AND published_at >= ?2 ORDER BY published_at, history_serial LIMIT 1)
  AND l.body IS NOT NULL
  AND m.message > coalesce((SELECT through FROM channels_erasure WHERE stream = ?1 AND actor = '' AND message = 0), 0)
ORDER BY m.history_serial DESC LIMIT 20;

-- name: channels_set_base
-- The state that the oldest kept version of a message builds on; the latest one, if it lies after it.
UPDATE channels_message SET base = ?2, base_seal = seal(?1, ?2),
  state = CASE WHEN through < ?3 THEN ?2 ELSE state END,
  size_bytes = CASE WHEN through < ?3 THEN ?4 ELSE size_bytes END,
  through = max(through, ?3) WHERE message = ?1;

-- name: channels_base
-- What is below the oldest kept version of a message.
SELECT base FROM channels_message WHERE message = ?;

-- name: channels_remove_versions
-- Versions of a message that are gone.
DELETE FROM channels_version WHERE message = ? AND committed_id <= ?;

-- name: channels_remove_message
-- A message that is wholly gone.
DELETE FROM channels_message WHERE message = ?;

-- name: channels_remove_receipts
-- The receipts of a version end with it.
DELETE FROM dedupe WHERE committed_id = ? AND scope >= 'channels/' AND scope < 'channels0';

-- name: channels_open_streams
-- Messages that are being streamed, after a position, up to a stream, published at or before a time;
-- and when each got its last version.
SELECT m.stream, m.message, m.published_at,
       (SELECT l.committed_at FROM log l WHERE l.committed_id =
        (SELECT max(v.committed_id) FROM channels_version v WHERE v.message = m.message))
FROM channels_message m
WHERE m.is_open = 1 AND (m.stream, m.message) > (?, ?) AND m.stream <= ? AND m.published_at <= ?
  AND NOT EXISTS (SELECT 1 FROM channels_erasure e WHERE e.stream = m.stream AND e.actor = '' AND e.message = 0
                  AND e.through >= m.message)
ORDER BY m.stream, m.message LIMIT ?;

-- name: channels_open_messages
-- The messages of a channel that are being streamed.
SELECT m.message FROM channels_message m
WHERE m.is_open = 1 AND m.stream = ?1
  AND m.message > coalesce((SELECT through FROM channels_erasure WHERE stream = ?1 AND actor = '' AND message = 0), 0)
ORDER BY m.message;

-- name: channels_revoke
-- A token or a client is revoked, perhaps once more.
INSERT INTO channels_revocation (app_id, kind, value, at, seal)
VALUES (?1, ?2, ?3, ?4, seal(?1, ?2, ?3, ?4))
ON CONFLICT (app_id, kind, value) DO UPDATE SET at = max(at, excluded.at),
  seal = seal(app_id, kind, value, max(at, excluded.at));

-- name: channels_revocations_after
-- What was revoked after a given revocation, oldest first.
SELECT app_id, kind, value, at FROM channels_revocation
WHERE (at, app_id, kind, value) > (?, ?, ?, ?) ORDER BY at, app_id, kind, value LIMIT ?;

-- name: channels_old_revocations
-- What was revoked before a time, the oldest first.
SELECT app_id, kind, value FROM channels_revocation WHERE at < ? ORDER BY at, app_id, kind, value LIMIT ?;

-- name: channels_forget_revocation
-- One of these, unless it was revoked again.
DELETE FROM channels_revocation WHERE app_id = ? AND kind = ? AND value = ? AND at < ?;

-- name: channels_app
-- Whether there is a channel whose stream begins so; with what follows the last character, which is a slash.
SELECT 1 FROM channels_channel WHERE stream >= ?1 AND stream < rtrim(?1, '/') || '0' LIMIT 1;
