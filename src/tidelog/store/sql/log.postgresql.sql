-- name: head
-- The one row that says where the log ends, and under which incarnation.
SELECT committed_id, digest, committed_at, log_id,
       (SELECT id FROM tidelog.incarnation ORDER BY number DESC LIMIT 1)
FROM tidelog.head;

-- name: lock_head
-- Gapless, commit-ordered ids across nodes: one writer at a time. It is a statement of its own: under
-- READ COMMITTED a statement's snapshot precedes its lock wait, so whatever is loaded must come after.
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT FROM tidelog.head FOR UPDATE;

-- name: look
-- The head, which transaction wrote it, and the time. Every batch of any node writes the head, also one
-- without entries: while xmin is the same, nothing has changed.
SELECT xmin, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, committed_id, digest, committed_at, log_id,
       (SELECT id FROM tidelog.incarnation ORDER BY number DESC LIMIT 1)
FROM tidelog.head;

-- name: touch_head
-- A statement that was decided by this head and is still on its way finds another one.
UPDATE tidelog.head SET committed_id = committed_id;

-- name: clock
-- The time that all nodes go by.
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- name: create_head
-- Written once, when the schema is created; a log that lost its head row must not get a new one.
INSERT INTO tidelog.head (only_row, log_id, committed_id, digest, committed_at, incarnation, seal)
SELECT 1, $1, 0, $2, 0, 1, tidelog.seal(json_build_array(1, $1::text, 0, encode($2::bytea, 'hex'), 0, 1))
WHERE NOT EXISTS (SELECT 1 FROM tidelog.log)
ON CONFLICT (only_row) DO NOTHING;

-- name: take_head
-- The new head, if the old one is still what the batch was decided by. Who waits here for another writer
-- compares with what that one wrote. The statements of a batch are parts of this one, and have no rows to
-- write if this has none.
UPDATE tidelog.head SET committed_id = $1, digest = $2, committed_at = $3,
  seal = tidelog.seal(json_build_array(
    only_row, log_id, $1::bigint, encode($2::bytea, 'hex'), $3::bigint, incarnation))
WHERE xmin = $4::xid AND committed_id = $5 AND digest = $6
RETURNING xmin;

-- name: note_writer
-- With the head of every batch.
INSERT INTO tidelog.writer (node, batch_id, committed_at) SELECT $7, $8, $3 FROM taken
ON CONFLICT (node) DO UPDATE SET batch_id = excluded.batch_id, committed_at = excluded.committed_at;

-- name: tell_head
-- The end of a batch's statement: which transaction it is, the time, and the wake-up of other nodes.
SELECT xmin, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, pg_notify('tidelog_head', $1::bigint::text)
FROM taken;

-- name: write_entries
-- What a batch appends; of a column in which all have the same value the first has it alone.
INSERT INTO tidelog.log (committed_id, stream, stream_serial, surface, kind, entity, ref, actor,
                         committed_at, body, data, body_digest, digest)
SELECT committed_id, stream, stream_serial, coalesce(surface, ($4::text[])[1]),
       coalesce(kind, ($5::text[])[1]), entity, coalesce(ref, ($7::text[])[1]),
       coalesce(actor, ($8::text[])[1]), coalesce(committed_at, ($9::bigint[])[1]), body, data, body_digest,
       digest
FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[],
            $7::text[], $8::text[], $9::bigint[], $10::bytea[], $11::bytea[], $12::bytea[],
            $13::bytea[])
  AS new (committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at, body, data,
          body_digest, digest);

-- name: write_keys
-- The keys that a batch uses.
INSERT INTO tidelog.dedupe (scope, key, committed_id, fingerprint, owner, outcome, available,
                            first_seen_at, expires_at, seal)
SELECT new.*, tidelog.seal(json_build_array(
         scope, key, committed_id, encode(fingerprint, 'hex'), owner, encode(outcome, 'hex'), available,
         first_seen_at, expires_at))
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[], $5::text[], $6::bytea[],
            $7::bigint[], $8::bigint[], $9::bigint[])
  AS new (scope, key, committed_id, fingerprint, owner, outcome, available, first_seen_at, expires_at);

-- name: batch_of_writer
-- Whether a batch whose COMMIT answer was lost is in the store; asked under the head lock.
SELECT batch_id FROM tidelog.writer WHERE node = $1;

-- name: forget_writers
-- Every start is a new writer; one that has not written for a day is gone.
DELETE FROM tidelog.writer WHERE committed_at < (extract(epoch FROM now())::bigint - 86400) * 1000;

-- name: stream_serials
-- The last serial of each named stream; the log itself is the only place it is kept.
SELECT name, (SELECT max(stream_serial) FROM tidelog.log WHERE stream = name)
FROM unnest($1::text[]) AS name;

-- name: dedupe_rows
-- The rows of the named keys.
SELECT d.scope, d.key, d.committed_id, d.fingerprint, d.owner, d.outcome, d.available, d.first_seen_at,
       d.expires_at
FROM unnest($1::text[], $2::text[]) AS named (scope, key) JOIN tidelog.dedupe d USING (scope, key);

-- name: entries_after
-- A page of the log in its order: at most $3 entries, and none after $4 bytes of content. Lengths are
-- read without the content.
WITH page AS (
  SELECT committed_id, sum(coalesce(octet_length(body), 0) + coalesce(octet_length(data), 0))
           OVER (ORDER BY committed_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM (SELECT * FROM tidelog.log WHERE committed_id > $1 AND committed_id <= $2
        ORDER BY committed_id LIMIT $3) AS named
)
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       body, data, body_digest, digest
FROM tidelog.log JOIN page USING (committed_id)
WHERE coalesce(before, 0) <= $4 ORDER BY committed_id;

-- name: stream_entries_after
-- A page of one stream in its order, bounded as above.
WITH page AS (
  SELECT committed_id, sum(coalesce(octet_length(body), 0) + coalesce(octet_length(data), 0))
           OVER (ORDER BY stream_serial ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM (SELECT * FROM tidelog.log WHERE stream = $1 AND stream_serial > $2
        ORDER BY stream_serial LIMIT $3) AS named
)
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       body, data, body_digest, digest
FROM tidelog.log JOIN page USING (committed_id)
WHERE coalesce(before, 0) <= $4 ORDER BY stream_serial;

-- name: stream_serial_before
-- Serials of streams whose entries are before positions.
SELECT named.number, l.stream_serial
FROM unnest($1::text[], $2::bigint[], $3::bigint[])
  WITH ORDINALITY AS named (stream, stream_serial, before, number)
JOIN tidelog.log l ON l.stream = named.stream AND l.stream_serial = named.stream_serial
WHERE l.committed_id < named.before;

-- name: empty_bodies
-- Prune: the content goes; the position, the digests and everything else stay (L8).
UPDATE tidelog.log SET body = NULL, data = NULL
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS range (name, after, through)
WHERE stream = range.name AND stream_serial > range.after AND stream_serial <= range.through;

-- name: forget_keys
-- Keys that have ended may be used again.
DELETE FROM tidelog.dedupe USING unnest($1::text[], $2::text[]) AS named (scope, key)
WHERE dedupe.scope = named.scope AND dedupe.key = named.key;

-- name: unavailable_keys
-- The dedupe rows of pruned entries answer that the content is gone.
UPDATE tidelog.dedupe AS d SET available = 0,
  seal = tidelog.seal(json_build_array(
    d.scope, d.key, d.committed_id, encode(d.fingerprint, 'hex'), d.owner, encode(d.outcome, 'hex'), 0,
    d.first_seen_at, d.expires_at))
FROM unnest($1::text[], $2::text[]) AS named (scope, key)
WHERE d.scope = named.scope AND d.key = named.key;

-- name: stats
-- Sums over the log by surface.
SELECT surface, count(*), count(DISTINCT stream), count(*) FILTER (WHERE body IS NULL),
       sum(coalesce(length(body), 0) + coalesce(length(data), 0))::bigint, min(committed_at),
       max(committed_at)
FROM tidelog.log GROUP BY surface ORDER BY surface;

-- name: dedupe_count
-- How many keys are remembered.
SELECT count(*) FROM tidelog.dedupe;

-- name: durability
-- The two settings without which COMMIT is a promise the server cannot keep.
SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit') ORDER BY name;

-- name: sample_content
-- Replaces what the statistics have sampled of columns with content, by some of what is there now.
ANALYZE tidelog.log (body, data), tidelog.dedupe (key);

-- name: add_unused_key
-- One that nobody can ask for.
INSERT INTO tidelog.dedupe (scope, key, fingerprint, owner, outcome, available, first_seen_at)
VALUES ('', '', '', '', '', 0, 0);

-- name: remove_unused_key
-- In the same transaction: nobody ever sees it.
DELETE FROM tidelog.dedupe WHERE scope = '' AND key = '';
