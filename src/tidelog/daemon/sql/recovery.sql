-- name: recovery_copy
-- A row as it was.
INSERT INTO outbox (id, client_message_id, request_fingerprint, payload, enqueued_at, attempts, next_attempt_at,
                    status, last_error, delivered_at, broker_message_id, history_id, aborted_at, aborted_by,
                    superseded_by, asked_to, destination_ref, incarnation, lost_in)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: recovery_retire
-- A row of which little more than the id could be read: the id stays taken.
INSERT INTO outbox (id, client_message_id, request_fingerprint, payload, enqueued_at, next_attempt_at, status,
                    last_error, aborted_at, aborted_by)
VALUES (:id, :client_message_id, :request_fingerprint, x'', :now, :now, 'aborted', 'payload_unreadable', :now,
        'auto');

-- name: recovery_row
-- The row of a rowid, whole; read from the damaged file, which may have fewer columns than this version.
SELECT * FROM outbox NOT INDEXED WHERE rowid = ?;

-- name: recovery_head
-- What lies before the payload, which may be in pages of its own.
SELECT id, client_message_id, request_fingerprint FROM outbox NOT INDEXED WHERE rowid = ?;

-- name: recovery_rowids
-- Rows in the order of the table, some at a time.
SELECT rowid FROM outbox NOT INDEXED WHERE rowid > ? ORDER BY rowid LIMIT ?;

-- name: recovery_rowids_back
-- The same from the other end, to get past a damaged page.
SELECT rowid FROM outbox NOT INDEXED WHERE rowid < ? ORDER BY rowid DESC LIMIT ?;

-- name: recovery_index_client_id
-- Ids and rowids as the index on the clients' ids has them, without the table.
SELECT client_message_id, rowid FROM outbox INDEXED BY sqlite_autoindex_outbox_2
WHERE client_message_id > ? ORDER BY client_message_id LIMIT ?;

-- name: recovery_index_client_id_back
-- The same from the other end.
SELECT client_message_id, rowid FROM outbox INDEXED BY sqlite_autoindex_outbox_2
WHERE client_message_id < ? ORDER BY client_message_id DESC LIMIT ?;

-- name: recovery_index_id
-- The row's own ids and rowids as their index has them.
SELECT id, rowid FROM outbox INDEXED BY sqlite_autoindex_outbox_1 WHERE id > ? ORDER BY id LIMIT ?;

-- name: recovery_index_id_back
-- The same from the other end.
SELECT id, rowid FROM outbox INDEXED BY sqlite_autoindex_outbox_1 WHERE id < ? ORDER BY id DESC LIMIT ?;

-- name: recovery_state
-- The mesh, the clock's mark and what was negotiated.
SELECT key, value FROM daemon_state;

-- name: recovery_tables
-- Whether there is an outbox in the file at all.
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'outbox';
