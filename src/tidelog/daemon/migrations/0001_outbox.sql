-- The daemon's outbox: one row per client_message_id, never deleted (mesh 4.8).

-- "tdob": what tells our files from those of other applications.
PRAGMA application_id = 0x74646f62;

CREATE TABLE outbox (
  id                  TEXT PRIMARY KEY,
  client_message_id   TEXT NOT NULL UNIQUE,
  request_fingerprint BLOB NOT NULL CHECK (length(request_fingerprint) = 32),
  payload             BLOB NOT NULL,
  enqueued_at         INTEGER NOT NULL,
  attempts            INTEGER NOT NULL DEFAULT 0,
  next_attempt_at     INTEGER NOT NULL,
  status              TEXT NOT NULL CHECK (status IN ('pending', 'inflight', 'done', 'dead', 'aborted')),
  last_error          TEXT,
  delivered_at        INTEGER,
  broker_message_id   TEXT,
  history_id          INTEGER,
  aborted_at          INTEGER,
  -- 'operator' or, by recover only, 'auto'
  aborted_by          TEXT CHECK (aborted_by IN ('operator', 'auto')),
  -- outbox.id of the successor
  superseded_by       TEXT
);

CREATE INDEX outbox_pending ON outbox (status, next_attempt_at);
CREATE INDEX outbox_aborted ON outbox (status, aborted_at) WHERE status = 'aborted';
CREATE INDEX outbox_superseded ON outbox (superseded_by) WHERE superseded_by IS NOT NULL;
-- What waits, oldest first: the order of attempts, and where age is looked for.
CREATE INDEX outbox_waiting ON outbox (enqueued_at, id) WHERE status = 'pending';

-- The clock's high-water mark and the parameters negotiated last.
CREATE TABLE daemon_state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
