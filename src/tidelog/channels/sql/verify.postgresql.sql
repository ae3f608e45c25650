-- name: channels_check_entries
-- Entries between two positions, whether they have their version, their message and their channel, and how far
-- their erasure has come.
SELECT 1, l.committed_id, l.stream, l.stream_serial, l.message, l.has_body, (v.message IS NOT NULL)::int,
       (m.message IS NOT NULL)::int, (c.stream IS NOT NULL)::int,
       (SELECT max(e.step) FROM tidelog.channels_erasure e WHERE e.stream = l.stream AND e.actor = ''
        AND (e.message = l.message OR (e.message = 0 AND e.through >= l.message)))
FROM (SELECT committed_id, stream, stream_serial, right(entity, 20)::bigint AS message,
             (body IS NOT NULL)::int AS has_body
      FROM tidelog.log WHERE committed_id > ($1::bigint[])[1] AND committed_id <= ($2::bigint[])[1]
      AND surface = 'channels') AS l
LEFT JOIN tidelog.channels_version v ON v.message = l.message AND v.committed_id = l.committed_id
LEFT JOIN tidelog.channels_message m ON m.message = l.message
LEFT JOIN tidelog.channels_channel c ON c.stream = l.stream
ORDER BY l.committed_id;

-- name: channels_check_versions
-- Versions after one of them, and the message that the entry of each belongs to.
SELECT 1, v.message, v.committed_id, right(l.entity, 20)::bigint
FROM (SELECT message, committed_id FROM tidelog.channels_version
      WHERE (message, committed_id) > (($1::bigint[])[1], ($2::bigint[])[1])
      ORDER BY message, committed_id LIMIT ($3::bigint[])[1]) AS v
LEFT JOIN tidelog.log l ON l.committed_id = v.committed_id AND l.surface = 'channels' AND l.body IS NOT NULL
ORDER BY v.message, v.committed_id;

-- name: channels_check_messages
-- Messages after one of them with everything that is stored of them, and the entry that created each. What is
-- being erased comes and goes.
SELECT 1, m.message, m.stream, m.history_serial, m.published_at, m.is_open, m.size_bytes, m.through, m.state,
       m.base, m.base_seal, l.stream, l.kind, l.committed_at, l.stream_serial, l.entity, l.body,
       (EXISTS (SELECT 1 FROM tidelog.channels_stretch s WHERE s.stream = m.stream AND s.width = 256
                AND s.number = m.history_serial / 256))::int
FROM (SELECT * FROM tidelog.channels_message k WHERE k.message > ($1::bigint[])[1]
      AND NOT EXISTS (SELECT 1 FROM tidelog.channels_erasure e WHERE e.stream = k.stream AND e.actor = ''
                      AND e.message = 0 AND e.through >= k.message AND e.step < 2)
      ORDER BY k.message LIMIT ($2::bigint[])[1]) AS m
LEFT JOIN tidelog.log l ON l.committed_id = m.message AND l.surface = 'channels'
ORDER BY m.message;

-- name: channels_check_channels
-- Channels after one of them with everything that is stored of them, and where the log ends.
SELECT 1, c.stream, c.epoch, c.history_serial, c.history_floor, c.replay_floor, c.floors_seal,
       (SELECT committed_id FROM tidelog.head)
FROM tidelog.channels_channel c WHERE c.stream > ($1::text[])[1]
ORDER BY c.stream LIMIT ($2::bigint[])[1];

-- name: channels_count_creates
-- How many messages began in stretches of channels up to a position, how long they are, and their last
-- serials.
SELECT named.number, found.*
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[])
  WITH ORDINALITY AS named (stream, after, through, most, number),
LATERAL (
  SELECT count(*) FILTER (WHERE kind IN ('message.create', 'event')), count(*),
         coalesce(max(stream_serial), 0)
  FROM (SELECT kind, stream_serial FROM tidelog.log l
        WHERE l.stream = named.stream AND stream_serial > named.after AND committed_id <= named.through
        ORDER BY stream_serial LIMIT named.most) AS stretch
) AS found;

-- name: channels_check_stretches
-- Stretches after one of them, what is counted of their messages, or of the smaller ones that a wide one consists
-- of, and whether a smaller one has its wide one.
SELECT 1, s.stream, s.width, s.number, s.messages, s.size_bytes,
       CASE WHEN s.width = 256
       THEN (SELECT count(*) FROM tidelog.channels_message m WHERE m.stream = s.stream
             AND m.history_serial >= s.number * 256 AND m.history_serial < (s.number + 1) * 256)
       ELSE (SELECT coalesce(sum(n.messages), 0)::bigint FROM tidelog.channels_stretch n WHERE n.stream = s.stream
             AND n.width = 256 AND n.number >= s.number * 256 AND n.number < (s.number + 1) * 256) END,
       CASE WHEN s.width = 256
       THEN (SELECT coalesce(sum(m.size_bytes), 0)::bigint FROM tidelog.channels_message m WHERE m.stream = s.stream
             AND m.history_serial >= s.number * 256 AND m.history_serial < (s.number + 1) * 256)
       ELSE (SELECT coalesce(sum(n.size_bytes), 0)::bigint FROM tidelog.channels_stretch n WHERE n.stream = s.stream
             AND n.width = 256 AND n.number >= s.number * 256 AND n.number < (s.number + 1) * 256) END,
       (s.width <> 256 OR EXISTS (SELECT 1 FROM tidelog.channels_stretch w WHERE w.stream = s.stream
                                  AND w.width = 65536 AND w.number = s.number / 256))::int
FROM tidelog.channels_stretch s
WHERE (s.stream, s.width, s.number) > (($1::text[])[1], ($2::bigint[])[1], ($3::bigint[])[1])
ORDER BY s.stream, s.width, s.number LIMIT ($4::bigint[])[1];
