-- name: outbox_find
-- The row that has a client's id; what the lookup of an accept needs.
SELECT request_fingerprint, status, broker_message_id, history_id, last_error, asked_to, destination_ref, lost_in
FROM outbox WHERE client_message_id = ?;

-- name: outbox_insert
-- A new send. No upsert: a conflict must be reported, never overwritten.
INSERT INTO outbox (id, client_message_id, request_fingerprint, payload, asked_to, destination_ref,
                    enqueued_at, next_attempt_at, status)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'pending');

-- name: outbox_due
-- Pending rows whose time has come, oldest first; a time too far ahead comes from a clock that was. They are found in
-- the index, and only then read.
SELECT o.id, o.client_message_id, o.request_fingerprint, o.payload, o.attempts,
       (SELECT p.client_message_id FROM outbox p WHERE p.superseded_by = o.id), o.enqueued_at
FROM (
  SELECT id FROM outbox INDEXED BY outbox_waiting
  WHERE status = 'pending' AND (next_attempt_at <= :now OR next_attempt_at > :latest)
  ORDER BY enqueued_at, id LIMIT :limit
) AS due JOIN outbox o ON o.id = due.id
ORDER BY o.enqueued_at, o.id;

-- name: outbox_next_due
-- When the next pending row is due.
SELECT min(next_attempt_at) FROM outbox WHERE status = 'pending';

-- name: outbox_claim
-- Start an attempt.
UPDATE outbox SET status = 'inflight', attempts = attempts + 1
WHERE id = ? AND status = 'pending' AND attempts = ?;

-- name: outbox_too_old
-- Pending rows that have reached their age.
SELECT id, attempts FROM outbox INDEXED BY outbox_waiting WHERE status = 'pending' AND enqueued_at <= ? LIMIT ?;

-- name: outbox_expire
-- A row dies of age; no attempt was started past the limit.
UPDATE outbox SET status = 'dead', last_error = ? WHERE id = ? AND status = 'pending' AND attempts = ?;

-- name: outbox_done
-- The broker has it.
UPDATE outbox
SET status = 'done', broker_message_id = ?, history_id = ?, incarnation = ?, delivered_at = ?, last_error = NULL
WHERE id = ? AND status = 'inflight' AND attempts = ?;

-- name: outbox_retry
-- An attempt failed and may be repeated.
UPDATE outbox SET status = 'pending', last_error = ?, next_attempt_at = ?
WHERE id = ? AND status = 'inflight' AND attempts = ?;

-- name: outbox_bury
-- The broker refused it for good.
UPDATE outbox SET status = 'dead', last_error = ? WHERE id = ? AND status = 'inflight' AND attempts = ?;

-- name: outbox_recover
-- At start: an attempt that was under way when the last process ended counts as one more.
UPDATE outbox SET status = 'pending', attempts = attempts + 1, next_attempt_at = ? WHERE status = 'inflight';

-- name: outbox_row
-- All columns of a row by its own id.
SELECT id, client_message_id, request_fingerprint, payload, enqueued_at, attempts, next_attempt_at, status,
       last_error, delivered_at, broker_message_id, history_id, aborted_at, aborted_by, superseded_by,
       asked_to, destination_ref, incarnation, lost_in
FROM outbox WHERE id = ?;

-- name: outbox_row_by_client_id
-- All columns of a row by its client's id.
SELECT id, client_message_id, request_fingerprint, payload, enqueued_at, attempts, next_attempt_at, status,
       last_error, delivered_at, broker_message_id, history_id, aborted_at, aborted_by, superseded_by,
       asked_to, destination_ref, incarnation, lost_in
FROM outbox WHERE client_message_id = ?;

-- name: outbox_predecessor
-- The row that another one replaced.
SELECT id, client_message_id, request_fingerprint, payload, enqueued_at, attempts, next_attempt_at, status,
       last_error, delivered_at, broker_message_id, history_id, aborted_at, aborted_by, superseded_by,
       asked_to, destination_ref, incarnation, lost_in
FROM outbox WHERE superseded_by = ?;

-- name: outbox_list
-- Newest first, without payloads.
SELECT id, client_message_id, request_fingerprint, x'', enqueued_at, attempts, next_attempt_at, status,
       last_error, delivered_at, broker_message_id, history_id, aborted_at, aborted_by, superseded_by,
       asked_to, destination_ref, incarnation, lost_in
FROM outbox WHERE :status IS NULL OR status = :status
ORDER BY rowid DESC LIMIT :limit;

-- name: outbox_list_lost
-- What the broker perhaps has not got any more; newest first, without payloads.
SELECT id, client_message_id, request_fingerprint, x'', enqueued_at, attempts, next_attempt_at, status,
       last_error, delivered_at, broker_message_id, history_id, aborted_at, aborted_by, superseded_by,
       asked_to, destination_ref, incarnation, lost_in
FROM outbox WHERE lost_in IS NOT NULL AND status = 'done'
ORDER BY rowid DESC LIMIT ?;

-- name: outbox_count_lost
-- How many these are.
SELECT count(*) FROM outbox WHERE lost_in IS NOT NULL AND status = 'done';

-- name: outbox_lose
-- Another history shares no more than this with the one before: what was `done` after it may be gone.
UPDATE outbox SET lost_in = :incarnation
WHERE status = 'done' AND history_id > :began AND lost_in IS NULL AND incarnation IS NOT :incarnation;

-- name: outbox_find_again
-- A history that was known before is back, and has what became `done` in it.
UPDATE outbox SET lost_in = NULL WHERE lost_in IS NOT NULL AND status = 'done' AND incarnation = :incarnation;

-- name: outbox_retire
-- A requeue or a drop; only rows that wait, have failed, or may be lost.
UPDATE outbox SET status = 'aborted', aborted_at = ?, aborted_by = 'operator', superseded_by = ?
WHERE id = ? AND status = ? AND attempts = ?;

-- name: outbox_kept
-- Rows that are final and still have content, oldest first, up to a time. What may be lost is not final: it can be
-- sent again.
SELECT id, length(payload) FROM outbox INDEXED BY outbox_kept
WHERE (status = 'aborted' OR status = 'done' AND lost_in IS NULL) AND length(payload) > 0
  AND coalesce(aborted_at, delivered_at) <= ?
ORDER BY coalesce(aborted_at, delivered_at) LIMIT ?;

-- name: outbox_empty
-- Empty the content of a row; the row stays, or its id would be free.
UPDATE outbox SET payload = x'' WHERE id = ?;

-- name: outbox_bytes
-- Bytes of content of rows that are not final, and of those that are.
SELECT bytes FROM outbox_bytes ORDER BY is_final;

-- name: outbox_counts
-- Rows by status.
SELECT status, count(*) FROM outbox GROUP BY status;

-- name: outbox_oldest
-- When the oldest row that still waits was accepted.
SELECT min(enqueued_at) FROM outbox INDEXED BY outbox_waiting WHERE status = 'pending';

-- name: outbox_state
-- One remembered value.
SELECT value FROM daemon_state WHERE key = ?;

-- name: outbox_set_state
-- Remember a value.
INSERT INTO daemon_state (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;
