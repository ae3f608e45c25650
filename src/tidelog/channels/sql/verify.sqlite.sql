-- name: channels_check_entries
-- Entries between two positions, whether they have their version, their message and their channel, and how far
-- their erasure has come.
SELECT l.committed_id, l.stream, l.stream_serial, l.message, l.has_body, v.message IS NOT NULL,
       m.message IS NOT NULL, c.stream IS NOT NULL,
       (SELECT max(e.step) FROM channels_erasure e WHERE e.stream = l.stream AND e.actor = ''
        AND (e.message = l.message OR (e.message = 0 AND e.through >= l.message)))
FROM (SELECT committed_id, stream, stream_serial, CAST(substr(entity, -20) AS INTEGER) AS message,
             body IS NOT NULL AS has_body
      FROM log WHERE committed_id > ? AND committed_id <= ? AND surface = 'channels') l
LEFT JOIN channels_version v ON v.message = l.message AND v.committed_id = l.committed_id
LEFT JOIN channels_message m ON m.message = l.message
LEFT JOIN channels_channel c ON c.stream = l.stream
ORDER BY l.committed_id;

-- name: channels_check_versions
-- Versions after one of them, and the message that the entry of each belongs to.
SELECT v.message, v.committed_id, CAST(substr(l.entity, -20) AS INTEGER)
FROM (SELECT message, committed_id FROM channels_version WHERE (message, committed_id) > (?, ?)
      ORDER BY message, committed_id LIMIT ?) v
LEFT JOIN log l ON l.committed_id = v.committed_id AND l.surface = 'channels' AND l.body IS NOT NULL
ORDER BY v.message, v.committed_id;

-- name: channels_check_messages
-- Messages after one of them with everything that is stored of them, and the entry that created each. What is
-- being erased comes and goes.
SELECT m.message, m.stream, m.history_serial, m.published_at, m.is_open, m.size_bytes, m.through, m.state,
       m.base, m.base_seal, l.stream, l.kind, l.committed_at, l.stream_serial, l.entity, l.body,
       (EXISTS (SELECT 1 FROM channels_stretch s WHERE s.stream = m.stream AND s.width = 256
                AND s.number = m.history_serial / 256))
FROM (SELECT * FROM channels_message k WHERE k.message > ?
      AND NOT EXISTS (SELECT 1 FROM channels_erasure e WHERE e.stream = k.stream AND e.actor = ''
                      AND e.message = 0 AND e.through >= k.message AND e.step < 2)
      ORDER BY k.message LIMIT ?) m
LEFT JOIN log l ON l.committed_id = m.message AND l.surface = 'channels'
ORDER BY m.message;

-- name: channels_check_channels
-- Channels after one of them with everything that is stored of them, and where the log ends.
SELECT c.stream, c.epoch, c.history_serial, c.history_floor, c.replay_floor, c.floors_seal,
       (SELECT committed_id FROM head)
FROM channels_channel c WHERE c.stream > ? ORDER BY c.stream LIMIT ?;

-- name: channels_count_creates
-- How many messages began in a stretch of a channel up to a position, how long it is, and its last serial.
SELECT coalesce(sum(kind IN ('message.create', 'event')), 0), count(*), coalesce(max(stream_serial), 0)
FROM (SELECT kind, stream_serial FROM log WHERE stream = ?1 AND stream_serial > ?2 AND committed_id <= ?3
      ORDER BY stream_serial LIMIT ?4);

-- name: channels_check_stretches
-- Stretches after one of them, what is counted of their messages, or of the smaller ones that a wide one consists
-- of, and whether a smaller one has its wide one.
SELECT s.stream, s.width, s.number, s.messages, s.size_bytes,
       CASE WHEN s.width = 256
       THEN (SELECT count(*) FROM channels_message m WHERE m.stream = s.stream
             AND m.history_serial >= s.number * 256 AND m.history_serial < (s.number + 1) * 256)
       ELSE (SELECT coalesce(sum(n.messages), 0) FROM channels_stretch n WHERE n.stream = s.stream
             AND n.width = 256 AND n.number >= s.number * 256 AND n.number < (s.number + 1) * 256) END,
       CASE WHEN s.width = 256
       THEN (SELECT coalesce(sum(m.size_bytes), 0) FROM channels_message m WHERE m.stream = s.stream
             AND m.history_serial >= s.number * 256 AND m.history_serial < (s.number + 1) * 256)
       ELSE (SELECT coalesce(sum(n.size_bytes), 0) FROM channels_stretch n WHERE n.stream = s.stream
             AND n.width = 256 AND n.number >= s.number * 256 AND n.number < (s.number + 1) * 256) END,
       (s.width <> 256 OR EXISTS (SELECT 1 FROM channels_stretch w WHERE w.stream = s.stream
                                  AND w.width = 65536 AND w.number = s.number / 256))
FROM channels_stretch s
WHERE (s.stream, s.width, s.number) > (?1, ?2, ?3)
ORDER BY s.stream, s.width, s.number LIMIT ?4;
