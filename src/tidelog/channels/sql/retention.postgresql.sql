-- name: channels_expired_keys
-- Keys of channels whose time is over, a few at a time, by the index of times and not by that of keys.
SELECT named.number, found.scope, found.key
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS named (at, most, number),
LATERAL (
  SELECT scope, key FROM tidelog.dedupe
  WHERE expires_at <= named.at AND left(scope, 9) = 'channels/'
  ORDER BY expires_at LIMIT named.most
) AS found;

-- name: channels_too_old
-- Versions between two positions that were committed before a time and still have their content.
SELECT named.number, found.*
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
  WITH ORDINALITY AS named (after, through, before, most, number),
LATERAL (
  SELECT l.committed_id, l.stream, l.stream_serial, l.entity, l.kind, octet_length(l.body) FROM tidelog.log l
  WHERE l.committed_id > named.after AND l.committed_id <= named.through AND l.surface = 'channels'
    AND l.body IS NOT NULL AND l.committed_at < named.before
  ORDER BY l.committed_id LIMIT named.most
) AS found ORDER BY named.number, found.committed_id;

-- name: channels_end
-- The last versions of messages that are kept, whether they are being streamed, and the size of their data.
SELECT named.number,
       (SELECT max(v.committed_id) FROM tidelog.channels_version v WHERE v.message = named.message),
       coalesce(m.is_open, 0), coalesce(m.size_bytes, 0)
FROM unnest($1::bigint[]) WITH ORDINALITY AS named (message, number)
LEFT JOIN tidelog.channels_message m USING (message);
