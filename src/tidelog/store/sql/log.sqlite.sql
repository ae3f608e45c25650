-- name: head
-- The one row that says where the log ends, and under which incarnation.
SELECT committed_id, digest, committed_at, log_id,
       (SELECT id FROM incarnation WHERE id <> '' ORDER BY number DESC LIMIT 1)
FROM head;

-- name: create_head
-- Written once, when the file is created; a log that lost its head row must not get a new one.
INSERT INTO head (only_row, log_id, committed_id, digest, committed_at, incarnation, seal)
SELECT 1, ?1, 0, ?2, 0, 1, seal(1, ?1, 0, ?2, 0, 1) WHERE NOT EXISTS (SELECT 1 FROM log)
ON CONFLICT (only_row) DO NOTHING;

-- name: advance_head
-- Move the end of the log, in the transaction that wrote the entries.
UPDATE head SET committed_id = ?1, digest = ?2, committed_at = ?3,
  seal = seal(only_row, log_id, ?1, ?2, ?3, incarnation);

-- name: stream_serial
-- The last serial of a stream; the log itself is the only place it is kept.
SELECT max(stream_serial) FROM log WHERE stream = ?;

-- name: dedupe_row
-- The row of one key.
SELECT scope, key, committed_id, fingerprint, owner, outcome, available, first_seen_at, expires_at
FROM dedupe WHERE scope = ? AND key = ?;

-- name: dedupe_rows
-- The rows of keys of one scope, which come as a JSON array; CROSS lets it look for each of them.
SELECT d.scope, d.key, d.committed_id, d.fingerprint, d.owner, d.outcome, d.available, d.first_seen_at,
       d.expires_at
FROM json_each(?2) AS named CROSS JOIN dedupe d ON d.scope = ?1 AND d.key = named.value;

-- name: insert_entry
-- One entry at its position.
INSERT INTO log (committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
                 body, data, body_digest, digest)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_dedupe
-- One key, in the transaction of its entry; its seal is made by whoever executes this.
INSERT INTO dedupe (scope, key, committed_id, fingerprint, owner, outcome, available, first_seen_at,
                    expires_at, seal)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: entries_after
-- A page of the log in its order.
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       body, data, body_digest, digest
FROM log WHERE committed_id > ? AND committed_id <= ? ORDER BY committed_id LIMIT ?;

-- name: stream_entries_after
-- A page of one stream in its order.
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       body, data, body_digest, digest
FROM log WHERE stream = ? AND stream_serial > ? ORDER BY stream_serial LIMIT ?;

-- name: stream_serial_before
-- A serial of a stream, if its entry is before a position.
SELECT stream_serial FROM log WHERE stream = ? AND stream_serial = ? AND committed_id < ?;

-- name: empty_bodies
-- Prune: the content goes; the position, the digests and everything else stay (L8).
UPDATE log SET body = NULL, data = NULL WHERE stream = ? AND stream_serial > ? AND stream_serial <= ?;

-- name: forget_keys
-- A key that has ended may be used again.
DELETE FROM dedupe WHERE scope = ? AND key = ?;

-- name: unavailable_keys
-- The dedupe rows of pruned entries answer that the content is gone.
UPDATE dedupe SET available = 0,
  seal = seal(scope, key, committed_id, fingerprint, owner, outcome, 0, first_seen_at, expires_at)
WHERE scope = ? AND key = ?;

-- name: stats
-- Sums over the log by surface.
SELECT surface, count(*), count(DISTINCT stream), sum(body IS NULL),
       sum(coalesce(length(body), 0) + coalesce(length(data), 0)), min(committed_at), max(committed_at)
FROM log GROUP BY surface ORDER BY surface;

-- name: dedupe_count
-- How many keys are remembered.
SELECT count(*) FROM dedupe;
