-- What a file is bound to: `client_id`, whose drafts it holds, and `incarnation`, the history of the
-- log that its committed events are from.

CREATE TABLE binding (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- A file of an earlier version with drafts belongs to whoever wrote the first of them. One without
-- belongs to whoever opens it next.
INSERT INTO binding (name, value)
SELECT 'client_id', client_id FROM events WHERE status = 'draft' ORDER BY created_at, draft_clock LIMIT 1;
