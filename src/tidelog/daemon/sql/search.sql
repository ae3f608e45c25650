-- name: search_module
-- Whether this SQLite has full-text search.
SELECT 1 FROM pragma_module_list WHERE name = 'fts5';

-- name: search_parts
-- How many of the index and its triggers there are.
SELECT count(*) FROM sqlite_schema WHERE name IN ('inbox_fts', 'inbox_fts_insert', 'inbox_fts_delete');

-- name: search_view
-- What is searched: text. Bodies that are other bytes have no words.
CREATE VIEW IF NOT EXISTS inbox_text AS
SELECT rowid AS place, CASE WHEN typeof(body) = 'text' THEN body END AS body, sender_name, topic FROM inbox;

-- name: search_table
-- The index; it holds words and places, the text stays in the inbox.
CREATE VIRTUAL TABLE IF NOT EXISTS inbox_fts
USING fts5(body, sender_name, topic, content = 'inbox_text', content_rowid = 'place');

-- name: search_on_insert
-- A new message can be found at once.
CREATE TRIGGER IF NOT EXISTS inbox_fts_insert AFTER INSERT ON inbox BEGIN
  INSERT INTO inbox_fts (rowid, body, sender_name, topic)
  VALUES (new.rowid, CASE WHEN typeof(new.body) = 'text' THEN new.body END, new.sender_name, new.topic);
END;

-- name: search_on_delete
-- A message that is gone is not found.
CREATE TRIGGER IF NOT EXISTS inbox_fts_delete AFTER DELETE ON inbox BEGIN
  INSERT INTO inbox_fts (inbox_fts, rowid, body, sender_name, topic)
  VALUES ('delete', old.rowid, CASE WHEN typeof(old.body) = 'text' THEN old.body END, old.sender_name, old.topic);
END;

-- name: search_rebuild
-- Index everything anew: places change when the file is vacuumed.
INSERT INTO inbox_fts (inbox_fts) VALUES ('rebuild');

-- name: search_end_insert
-- Without the index nothing is to be kept in it.
DROP TRIGGER IF EXISTS inbox_fts_insert;

-- name: search_end_delete
-- The same for what is removed.
DROP TRIGGER IF EXISTS inbox_fts_delete;

-- name: search_page
-- Messages that match, after a position, in the order they were received in.
SELECT id, client_message_id, broker_message_id, mesh, topic, sender_pubkey, sender_name, body,
       meta, received_at, reply_to_id, history_id, priority, created_at, mention
FROM inbox
WHERE rowid IN (SELECT rowid FROM inbox_fts WHERE inbox_fts MATCH :words)
  AND (received_at, id) > (:after_at, :after_id)
ORDER BY received_at, id LIMIT :limit;
