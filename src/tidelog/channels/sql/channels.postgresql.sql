-- name: channels_channel
-- Channels' counters, their open streams, their last serials, these as of a position, how many messages began
-- after that, and up to which message everything is erased.
SELECT named.number, coalesce(c.epoch, 0), coalesce(c.history_serial, 0), coalesce(c.history_floor, 0),
       coalesce(c.replay_floor, 0),
       (SELECT count(*) FROM tidelog.channels_message m WHERE m.stream = named.stream AND is_open = 1
        AND m.message > coalesce(e.through, 0)),
       coalesce((SELECT max(stream_serial) FROM tidelog.log l WHERE l.stream = named.stream), 0), d.serial,
       (SELECT count(*) FROM tidelog.log l WHERE l.stream = named.stream AND l.stream_serial > d.serial
        AND l.kind IN ('message.create', 'event')), coalesce(e.through, 0)
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (stream, position, number)
CROSS JOIN LATERAL (
  SELECT coalesce((SELECT stream_serial FROM tidelog.log l
                   WHERE l.stream = named.stream AND l.committed_id <= named.position
                   ORDER BY stream_serial DESC LIMIT 1), 0) AS serial
) AS d
LEFT JOIN tidelog.channels_channel c ON c.stream = named.stream
LEFT JOIN tidelog.channels_erasure e ON e.stream = named.stream AND e.actor = '' AND e.message = 0;

-- name: channels_note_history
-- The channels' last history serials.
INSERT INTO tidelog.channels_channel AS c (stream, epoch, history_serial, history_floor, replay_floor)
SELECT stream, 0, max(history_serial), 0, 0
FROM unnest($1::text[], $2::bigint[]) AS named (stream, history_serial) GROUP BY stream
ON CONFLICT (stream) DO UPDATE SET history_serial = greatest(c.history_serial, excluded.history_serial);

-- name: channels_set_floors
-- A reset or a purge: how often it was reset, and up to where history and replay are gone.
INSERT INTO tidelog.channels_channel AS c
  (stream, epoch, history_serial, history_floor, replay_floor, floors_seal)
SELECT stream, max(epoch), 0, max(history_floor), max(replay_floor),
       tidelog.seal(json_build_array(stream, max(epoch), max(history_floor), max(replay_floor)))
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[])
  AS named (stream, epoch, history_floor, replay_floor) GROUP BY stream
ON CONFLICT (stream) DO UPDATE SET epoch = greatest(c.epoch, excluded.epoch),
  history_floor = greatest(c.history_floor, excluded.history_floor),
  replay_floor = greatest(c.replay_floor, excluded.replay_floor),
  floors_seal = tidelog.seal(json_build_array(
    c.stream, greatest(c.epoch, excluded.epoch), greatest(c.history_floor, excluded.history_floor),
    greatest(c.replay_floor, excluded.replay_floor)));

-- name: channels_add_message
-- New messages; the state of each is its create, until more is folded.
INSERT INTO tidelog.channels_message
  (message, stream, history_serial, published_at, is_open, size_bytes, through)
SELECT message, stream, history_serial, published_at, is_open, size_bytes, 0
FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
  AS named (message, stream, history_serial, published_at, is_open, size_bytes);

-- name: channels_add_version
-- Versions of messages.
INSERT INTO tidelog.channels_version (message, committed_id)
SELECT * FROM unnest($1::bigint[], $2::bigint[]);

-- name: channels_fold
-- Whether messages are open after one of their versions; and their states up to that one, if they are given.
-- Of several of one message the last counts, and the last with a state.
WITH given AS (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[])
    WITH ORDINALITY AS given (message, is_open, size_bytes, through, state, number)
), named AS (
  SELECT DISTINCT ON (message) message, is_open FROM given ORDER BY message, number DESC
), folded AS (
  SELECT DISTINCT ON (message) message, size_bytes, through, state FROM given WHERE state IS NOT NULL
  ORDER BY message, number DESC
)
UPDATE tidelog.channels_message m
SET is_open = named.is_open, size_bytes = coalesce(folded.size_bytes, m.size_bytes),
    through = coalesce(folded.through, m.through), state = coalesce(folded.state, m.state)
FROM named LEFT JOIN folded ON folded.message = named.message WHERE m.message = named.message;

-- name: channels_message
-- What is stored of messages of a channel.
SELECT named.number, m.through, m.state
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (stream, message, number)
JOIN tidelog.channels_message m ON m.message = named.message AND m.stream = named.stream
LEFT JOIN tidelog.channels_erasure e ON e.stream = named.stream AND e.actor = '' AND e.message = 0
WHERE m.message > coalesce(e.through, 0);

-- name: channels_versions_after
-- Versions of a message, the oldest first.
SELECT named.number, found.*
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
  WITH ORDINALITY AS named (message, after, through, most, number),
LATERAL (
  SELECT l.kind, l.committed_id, l.committed_at, l.stream_serial, l.entity, l.body
  FROM tidelog.channels_version v JOIN tidelog.log l ON l.committed_id = v.committed_id
  WHERE v.message = named.message AND v.committed_id > named.after AND v.committed_id <= named.through
  ORDER BY v.committed_id LIMIT named.most
) AS found ORDER BY named.number, found.committed_id;

-- name: channels_versions_before
-- Versions of a message that is not erased, the newest first.
SELECT named.number, found.*
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[])
  WITH ORDINALITY AS named (message, before, most, number),
LATERAL (
  SELECT l.kind, l.committed_id, l.committed_at, l.stream_serial, l.entity, l.body
  FROM tidelog.channels_version v JOIN tidelog.log l ON l.committed_id = v.committed_id
  WHERE v.message = named.message AND v.committed_id < named.before
    AND NOT EXISTS (SELECT 1 FROM tidelog.channels_erasure e WHERE e.stream = l.stream AND e.actor = ''
                    AND (e.message = v.message OR (e.message = 0 AND e.through >= v.message)))
  ORDER BY v.committed_id DESC LIMIT named.most
) AS found ORDER BY named.number, found.committed_id DESC;

-- name: channels_history_up
-- Places and sizes of messages of a channel, between serials and times, the oldest first. Times are looked up:
-- no row outside of them is read. (`+ 0`: in the order of the history, whatever the planner thinks of erasures.)
SELECT named.number, found.*
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
  WITH ORDINALITY AS named (stream, low, high, since, until, most, number)
LEFT JOIN tidelog.channels_erasure e ON e.stream = named.stream AND e.actor = '' AND e.message = 0,
LATERAL (
  SELECT history_serial, size_bytes FROM tidelog.channels_message m
  WHERE m.stream = named.stream
    AND history_serial >= greatest(low, coalesce((SELECT t.history_serial FROM tidelog.channels_message t
          WHERE t.stream = named.stream AND t.published_at >= since
          ORDER BY t.published_at, t.history_serial LIMIT 1), 1::bigint << 60))
    AND history_serial <= least(high, coalesce((SELECT t.history_serial FROM tidelog.channels_message t
          WHERE t.stream = named.stream AND t.published_at <= until
          ORDER BY t.published_at DESC, t.history_serial DESC LIMIT 1), 0))
    AND m.message + 0 > coalesce(e.through, 0)
  ORDER BY history_serial LIMIT named.most
) AS found ORDER BY named.number, found.history_serial;

-- name: channels_history_down
-- The same, the newest first.
SELECT named.number, found.*
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
  WITH ORDINALITY AS named (stream, low, high, since, until, most, number)
LEFT JOIN tidelog.channels_erasure e ON e.stream = named.stream AND e.actor = '' AND e.message = 0,
LATERAL (
  SELECT history_serial, size_bytes FROM tidelog.channels_message m
  WHERE m.stream = named.stream
    AND history_serial >= greatest(low, coalesce((SELECT t.history_serial FROM tidelog.channels_message t
          WHERE t.stream = named.stream AND t.published_at >= since
          ORDER BY t.published_at, t.history_serial LIMIT 1), 1::bigint << 60))
    AND history_serial <= least(high, coalesce((SELECT t.history_serial FROM tidelog.channels_message t
          WHERE t.stream = named.stream AND t.published_at <= until
          ORDER BY t.published_at DESC, t.history_serial DESC LIMIT 1), 0))
    AND m.message + 0 > coalesce(e.through, 0)
  ORDER BY history_serial DESC LIMIT named.most
) AS found ORDER BY named.number, found.history_serial DESC;

-- name: channels_history_rows
-- What is stored of the messages between serials and times, the oldest first.
SELECT named.number, m.message, m.history_serial, m.published_at, m.through, m.state
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
  WITH ORDINALITY AS named (stream, low, high, since, until, number)
JOIN tidelog.channels_message m
  ON m.stream = named.stream AND m.history_serial >= low AND m.history_serial <= high
    AND m.published_at >= since AND m.published_at <= until
LEFT JOIN tidelog.channels_erasure e ON e.stream = named.stream AND e.actor = '' AND e.message = 0
WHERE m.message > coalesce(e.through, 0)
ORDER BY named.number, m.history_serial;

-- name: channels_exists
-- Whether channels have those messages.
SELECT named.number, 1
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (stream, message, number)
JOIN tidelog.channels_message m ON m.message = named.message AND m.stream = named.stream
LEFT JOIN tidelog.channels_erasure e ON e.stream = named.stream AND e.actor = '' AND e.message = 0
WHERE m.message > coalesce(e.through, 0);

-- name: channels_unfolded
-- The stored states' positions of the messages between two history serials, and what follows them.
SELECT named.number, m.message, m.through, l.kind, l.committed_id, l.committed_at, l.stream_serial,
       l.entity, l.body
FROM unnest($1::text[], $2::bigint[], $3::bigint[])
  WITH ORDINALITY AS named (stream, low, high, number)
JOIN tidelog.channels_message m
  ON m.stream = named.stream AND m.history_serial >= low AND m.history_serial <= high
LEFT JOIN tidelog.channels_version v ON v.message = m.message AND v.committed_id > m.through
LEFT JOIN tidelog.log l ON l.committed_id = v.committed_id
LEFT JOIN tidelog.channels_erasure e ON e.stream = named.stream AND e.actor = '' AND e.message = 0
WHERE m.message > coalesce(e.through, 0)
ORDER BY named.number, m.message, v.committed_id;

-- name: channels_retained
-- What history holds after a floor and not before a time: sums of stretches, less what the first of them has
-- before. Whatever is erased up to some message lies below the channel's own floor.
WITH first AS (
  SELECT named.number, named.stream,
         greatest(named.floor + 1, coalesce(c.history_floor, 0) + 1, coalesce(
           (SELECT m.history_serial FROM tidelog.channels_message m
            WHERE m.stream = named.stream AND m.published_at >= named.since
            ORDER BY m.published_at, m.history_serial LIMIT 1), 1::bigint << 60)) AS serial
  FROM unnest($1::text[], $2::bigint[], $3::bigint[])
    WITH ORDINALITY AS named (stream, floor, since, number)
  LEFT JOIN tidelog.channels_channel c ON c.stream = named.stream
)
SELECT first.number, sums.messages, oldest.history_serial, newest.history_serial, oldest.published_at,
       newest.published_at, sums.size_bytes
FROM first
CROSS JOIN LATERAL (
  SELECT coalesce(sum(messages), 0)::bigint AS messages, coalesce(sum(size_bytes), 0)::bigint AS size_bytes
  FROM (
    SELECT s.messages, s.size_bytes FROM tidelog.channels_stretch s
    WHERE s.stream = first.stream AND s.width = 65536 AND s.number > first.serial / 65536
    UNION ALL
    SELECT s.messages, s.size_bytes FROM tidelog.channels_stretch s
    WHERE s.stream = first.stream AND s.width = 256 AND s.number >= first.serial / 256
      AND s.number < (first.serial / 65536 + 1) * 256
    UNION ALL
    SELECT -1, -m.size_bytes FROM tidelog.channels_message m
    WHERE m.stream = first.stream AND m.history_serial >= first.serial / 256 * 256
      AND m.history_serial < first.serial
  ) AS parts
) AS sums
LEFT JOIN LATERAL (
  SELECT m.history_serial, m.published_at FROM tidelog.channels_message m
  WHERE m.stream = first.stream AND m.history_serial >= first.serial ORDER BY m.history_serial LIMIT 1
) AS oldest ON true
LEFT JOIN LATERAL (
  SELECT m.history_serial, m.published_at FROM tidelog.channels_message m
  WHERE m.stream = first.stream AND m.history_serial >= first.serial ORDER BY m.history_serial DESC LIMIT 1
) AS newest ON true;

-- name: channels_serial_before
-- The last history serial that was published before a time.
SELECT named.number, coalesce((SELECT history_serial FROM tidelog.channels_message m
                               WHERE m.stream = named.stream AND published_at < named.before
                               AND m.message + 0 > coalesce(e.through, 0)
                               ORDER BY published_at DESC, history_serial DESC LIMIT 1), 0)
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (stream, before, number)
LEFT JOIN tidelog.channels_erasure e ON e.stream = named.stream AND e.actor = '' AND e.message = 0;

-- name: channels_last_event
-- The creates of the newest messages of a channel, not before a time.
SELECT named.number, found.kind, found.committed_id, found.committed_at, found.stream_serial,
       found.entity, found.body
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (stream, since, number)
LEFT JOIN tidelog.channels_erasure e ON e.stream = named.stream AND e.actor = '' AND e.message = 0,
LATERAL (
  SELECT m.history_serial, l.* FROM tidelog.channels_message m
  JOIN tidelog.log l ON l.committed_id = m.message
  WHERE m.stream = named.stream
    AND m.history_serial >= (SELECT t.history_serial FROM tidelog.channels_message t
          WHERE t.stream = named.stream AND t.published_at >= named.since
          ORDER BY t.published_at, t.history_serial LIMIT 1)
    AND l.body IS NOT NULL AND m.message + 0 > coalesce(e.through, 0)
  ORDER BY m.history_serial DESC LIMIT 20
) AS found ORDER BY named.number, found.history_serial DESC;

-- name: channels_set_base
-- The states that the oldest kept versions build on; the latest ones, where they lie after it.
UPDATE tidelog.channels_message m SET base = named.base,
  base_seal = tidelog.seal(json_build_array(m.message, encode(named.base, 'hex'))),
  state = CASE WHEN m.through < named.at THEN named.base ELSE m.state END,
  size_bytes = CASE WHEN m.through < named.at THEN named.size_bytes ELSE m.size_bytes END,
  through = greatest(m.through, named.at)
FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[]) AS named (message, base, at, size_bytes)
WHERE m.message = named.message;

-- name: channels_base
-- What is below the oldest kept version of a message.
SELECT named.number, m.base
FROM unnest($1::bigint[]) WITH ORDINALITY AS named (message, number)
JOIN tidelog.channels_message m USING (message);

-- name: channels_remove_versions
-- Versions of messages that are gone.
DELETE FROM tidelog.channels_version v
USING unnest($1::bigint[], $2::bigint[]) AS named (message, through)
WHERE v.message = named.message AND v.committed_id <= named.through;

-- name: channels_remove_message
-- Messages that are wholly gone.
DELETE FROM tidelog.channels_message WHERE message = ANY($1::bigint[]);

-- name: channels_remove_receipts
-- The receipts of versions end with them.
DELETE FROM tidelog.dedupe WHERE committed_id = ANY($1::bigint[])
AND scope >= 'channels/' AND scope < 'channels0';

-- name: channels_open_streams
-- Messages that are being streamed, after a position, up to a stream, published at or before a time;
-- and when each got its last version.
SELECT named.number, found.*
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[])
  WITH ORDINALITY AS named (after, after_message, last, until, most, number),
LATERAL (
  SELECT m.stream, m.message, m.published_at,
         (SELECT l.committed_at FROM tidelog.log l WHERE l.committed_id =
          (SELECT max(v.committed_id) FROM tidelog.channels_version v WHERE v.message = m.message))
  FROM tidelog.channels_message m
  WHERE m.is_open = 1 AND (m.stream, m.message) > (named.after, named.after_message)
    AND m.stream <= named.last AND m.published_at <= named.until
    AND NOT EXISTS (SELECT 1 FROM tidelog.channels_erasure e WHERE e.stream = m.stream AND e.actor = ''
                    AND e.message = 0 AND e.through >= m.message)
  ORDER BY m.stream, m.message LIMIT named.most
) AS found ORDER BY named.number, found.stream, found.message;

-- name: channels_open_messages
-- The messages of channels that are being streamed.
SELECT named.number, m.message
FROM unnest($1::text[]) WITH ORDINALITY AS named (stream, number)
JOIN tidelog.channels_message m ON m.stream = named.stream AND m.is_open = 1
WHERE m.message > coalesce((SELECT through FROM tidelog.channels_erasure e WHERE e.stream = named.stream
                            AND e.actor = '' AND e.message = 0), 0)
ORDER BY named.number, m.message;

-- name: channels_revoke
-- Tokens or clients are revoked, perhaps once more.
INSERT INTO tidelog.channels_revocation AS r (app_id, kind, value, at, seal)
SELECT app_id, kind, value, max(at), tidelog.seal(json_build_array(app_id, kind, value, max(at)))
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS named (app_id, kind, value, at)
GROUP BY app_id, kind, value
ON CONFLICT (app_id, kind, value) DO UPDATE SET at = greatest(r.at, excluded.at),
  seal = tidelog.seal(json_build_array(r.app_id, r.kind, r.value, greatest(r.at, excluded.at)));

-- name: channels_revocations_after
-- What was revoked after a given revocation, oldest first.
SELECT named.number, found.*
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[])
  WITH ORDINALITY AS named (at, app_id, kind, value, most, number),
LATERAL (
  SELECT r.app_id, r.kind, r.value, r.at FROM tidelog.channels_revocation r
  WHERE (r.at, r.app_id, r.kind, r.value) > (named.at, named.app_id, named.kind, named.value)
  ORDER BY r.at, r.app_id, r.kind, r.value LIMIT named.most
) AS found ORDER BY named.number, found.at, found.app_id, found.kind, found.value;

-- name: channels_old_revocations
-- What was revoked before a time, the oldest first.
SELECT named.number, found.*
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS named (before, most, number),
LATERAL (
  SELECT r.app_id, r.kind, r.value FROM tidelog.channels_revocation r
  WHERE r.at < named.before ORDER BY r.at, r.app_id, r.kind, r.value LIMIT named.most
) AS found ORDER BY named.number;

-- name: channels_forget_revocation
-- Some of these, unless they were revoked again.
DELETE FROM tidelog.channels_revocation r
USING unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS named (app_id, kind, value, before)
WHERE r.app_id = named.app_id AND r.kind = named.kind AND r.value = named.value AND r.at < named.before;

-- name: channels_app
-- Whether there are channels whose streams begin so; with what follows the last character, which is a slash.
SELECT named.number, 1
FROM unnest($1::text[]) WITH ORDINALITY AS named (prefix, number)
WHERE EXISTS (SELECT FROM tidelog.channels_channel c
              WHERE c.stream >= named.prefix AND c.stream < rtrim(named.prefix, '/') || '0');
