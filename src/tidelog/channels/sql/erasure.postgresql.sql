-- name: channels_message_before
-- The last messages of channels up to a history serial.
SELECT named.number, (SELECT message FROM tidelog.channels_message m
                      WHERE m.stream = named.stream AND m.history_serial <= named.serial
                      ORDER BY m.history_serial DESC LIMIT 1)
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (stream, serial, number);

-- name: channels_newest
-- The last entries of channels, the newest first, without what they say.
SELECT named.number, found.*
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (stream, most, number),
LATERAL (
  SELECT stream_serial, entity FROM tidelog.log l WHERE l.stream = named.stream
  ORDER BY stream_serial DESC LIMIT named.most
) AS found ORDER BY named.number, found.stream_serial DESC;

-- name: channels_last_version
-- Where the last versions of messages are that are kept.
SELECT named.number, found.stream_serial
FROM unnest($1::bigint[]) WITH ORDINALITY AS named (message, number),
LATERAL (
  SELECT l.stream_serial FROM tidelog.channels_version v JOIN tidelog.log l ON l.committed_id = v.committed_id
  WHERE v.message = named.message ORDER BY v.committed_id DESC LIMIT 1
) AS found;

-- name: channels_create
-- Whether messages were ever created in a channel.
SELECT named.number, 1
FROM unnest($1::text[], $2::bigint[], $3::text[]) WITH ORDINALITY AS named (stream, message, entity, number)
JOIN tidelog.log l ON l.committed_id = named.message AND l.stream = named.stream AND l.entity = named.entity;

-- name: channels_written_by
-- The messages of an app that an actor wrote to, between two positions.
SELECT DISTINCT named.number, l.stream, right(l.entity, 20)::bigint
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
  WITH ORDINALITY AS named (prefix, actor, after, through, number)
JOIN tidelog.log l ON l.committed_id > named.after AND l.committed_id <= named.through
  AND l.surface = 'channels' AND l.actor = named.actor AND starts_with(l.stream, named.prefix);

-- name: channels_add_erasure
-- Something is to be erased; what is erased already is looked at once more.
INSERT INTO tidelog.channels_erasure AS e (stream, actor, message, through, searched, step, requested_at,
                                           requested_by, reason, seal)
SELECT stream, actor, message, through, 0, 0, requested_at, requested_by, reason,
       tidelog.seal(json_build_array(stream, actor, message, through, 0, 0, requested_at, requested_by, reason))
FROM (
  SELECT DISTINCT ON (stream, actor, message) *
  FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::text[])
    AS given (stream, actor, message, through, requested_at, requested_by, reason)
  ORDER BY stream, actor, message, through DESC
) AS named
ON CONFLICT (stream, actor, message) DO UPDATE SET through = greatest(e.through, excluded.through), step = 0,
  requested_at = excluded.requested_at, requested_by = excluded.requested_by, reason = excluded.reason,
  seal = tidelog.seal(json_build_array(e.stream, e.actor, e.message, greatest(e.through, excluded.through),
    e.searched, 0, excluded.requested_at, excluded.requested_by, excluded.reason));

-- name: channels_note_searched
-- How far the log was searched for what actors wrote.
UPDATE tidelog.channels_erasure e SET searched = named.searched,
  seal = tidelog.seal(json_build_array(e.stream, e.actor, e.message, e.through, named.searched, e.step,
    e.requested_at, e.requested_by, e.reason))
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS named (stream, actor, searched)
WHERE e.stream = named.stream AND e.actor = named.actor AND e.message = 0 AND e.searched < named.searched;

-- name: channels_note_step
-- How far erasures have come, unless more was asked for meanwhile.
UPDATE tidelog.channels_erasure e SET step = named.step,
  seal = tidelog.seal(json_build_array(e.stream, e.actor, e.message, e.through, e.searched, named.step,
    e.requested_at, e.requested_by, e.reason))
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])
  AS named (stream, actor, message, through, step)
WHERE e.stream = named.stream AND e.actor = named.actor AND e.message = named.message
  AND e.through = named.through AND e.step = named.step - 1;

-- name: channels_erasures_at
-- Erasures that have come so far and no further.
SELECT named.number, found.*
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS named (step, most, number),
LATERAL (
  SELECT stream, actor, message, through, searched, e.step FROM tidelog.channels_erasure e
  WHERE e.step < 2 AND e.step = named.step ORDER BY stream, actor, message LIMIT named.most
) AS found;

-- name: channels_erasure
-- Erasures.
SELECT named.number, e.stream, e.actor, e.message, e.through, e.searched, e.step
FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS named (stream, actor, message, number)
JOIN tidelog.channels_erasure e USING (stream, actor, message);

-- name: channels_erased
-- Whether messages are erased.
SELECT named.number, 1
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (stream, message, number)
WHERE EXISTS (
  SELECT 1 FROM tidelog.channels_erasure e WHERE e.stream = named.stream AND e.actor = ''
  AND (e.message = named.message OR (e.message = 0 AND e.through >= named.message))
);

-- name: channels_versions_to_empty
-- Versions of messages.
SELECT named.number, found.*
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS named (message, most, number),
LATERAL (
  SELECT v.message, l.stream, l.committed_id, l.stream_serial
  FROM tidelog.channels_version v JOIN tidelog.log l ON l.committed_id = v.committed_id
  WHERE v.message = named.message ORDER BY v.committed_id LIMIT named.most
) AS found ORDER BY named.number, found.committed_id;

-- name: channels_messages_to_empty
-- The first messages of a channel up to one of them, and their versions.
SELECT 1, m.message, ($1::text[])[1], l.committed_id, l.stream_serial
FROM (SELECT message FROM tidelog.channels_message
      WHERE stream = ($1::text[])[1] AND message <= ($2::bigint[])[1]
      ORDER BY history_serial LIMIT ($3::bigint[])[1]) AS m
LEFT JOIN tidelog.channels_version v ON v.message = m.message
LEFT JOIN tidelog.log l ON l.committed_id = v.committed_id
ORDER BY m.message, v.committed_id LIMIT ($3::bigint[])[1];
