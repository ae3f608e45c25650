-- name: sync_meta
-- One remembered number: the model version in use, or that of the reducers the snapshots came from.
SELECT value FROM meta WHERE key = ?;

-- name: sync_set_meta
-- Remember a number.
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: sync_draft_clock
-- Where the local counter goes on: after every row this client wrote itself.
SELECT coalesce(max(draft_clock), 0) FROM events WHERE client_id = ?;

-- name: sync_draft_count
-- How many drafts wait.
SELECT count(*) FROM events WHERE status = 'draft' AND client_id = ?;

-- name: sync_foreign_drafts
-- Drafts of other clients, from before a file was bound to one.
SELECT count(*) FROM events WHERE status = 'draft' AND client_id != ?;

-- name: sync_insert_draft
-- A new draft; its clock decides its position among the drafts.
INSERT INTO events (id, type, payload, extra, partitions, client_id, status, draft_clock, created_at)
VALUES (?, ?, ?, ?, ?, ?, 'draft', ?, ?);

-- name: sync_row
-- One event in whatever state.
SELECT id, committed_id, type, payload, extra, partitions, client_id, status, draft_clock, created_at,
       status_updated_at, reject_reason, errors
FROM events WHERE id = ?;

-- name: sync_drafts
-- Drafts in the order they are submitted in.
SELECT id, committed_id, type, payload, extra, partitions, client_id, status, draft_clock, created_at,
       status_updated_at, reject_reason, errors
FROM events WHERE status = 'draft' AND client_id = ? ORDER BY draft_clock, id LIMIT ?;

-- name: sync_rejected
-- What was refused, in the order it was written in.
SELECT id, committed_id, type, payload, extra, partitions, client_id, status, draft_clock, created_at,
       status_updated_at, reject_reason, errors
FROM events WHERE status = 'rejected' ORDER BY draft_clock, id;

-- name: sync_withdraw
-- Forget a draft.
DELETE FROM events WHERE id = ? AND status = 'draft';

-- name: sync_partition_drafts
-- Drafts of one partition in the order they overlay its committed state.
SELECT id, committed_id, type, payload, extra, partitions, client_id, status, draft_clock, created_at,
       status_updated_at, reject_reason, errors
FROM events
WHERE status = 'draft' AND client_id = ?
  AND EXISTS (SELECT 1 FROM json_each(events.partitions) WHERE value = ?)
ORDER BY draft_clock, id;

-- name: sync_rows
-- Everything: committed by position, then drafts by clock, then rejected.
SELECT id, committed_id, type, payload, extra, partitions, client_id, status, draft_clock, created_at,
       status_updated_at, reject_reason, errors
FROM events
ORDER BY CASE status WHEN 'committed' THEN 0 WHEN 'draft' THEN 1 ELSE 2 END,
         committed_id, draft_clock, id;

-- name: sync_committed_after
-- One partition's committed events after a position, for its state.
SELECT committed_id, events.type, events.payload, events.extra
FROM event_partitions JOIN events USING (committed_id)
WHERE event_partitions.partition = ? AND committed_id > ?
ORDER BY committed_id;

-- name: sync_committed_positions
-- The positions of a partition's committed events after one, whatever the state of the events.
SELECT committed_id FROM event_partitions WHERE partition = ? AND committed_id > ? ORDER BY committed_id;

-- name: sync_committed_row
-- One committed event.
SELECT type, payload, extra FROM events WHERE committed_id = ?;

-- name: sync_index
-- A committed event is part of a partition.
INSERT INTO event_partitions (partition, committed_id) VALUES (?, ?)
ON CONFLICT (partition, committed_id) DO NOTHING;

-- name: sync_drop_index
-- Forget the log.
DELETE FROM event_partitions;

-- name: sync_drop_index_after
-- Forget the part of the log that is another one now.
DELETE FROM event_partitions WHERE committed_id > ?;

-- name: sync_drop_pruned_index
-- The events are gone already.
DELETE FROM event_partitions
WHERE NOT EXISTS (SELECT 1 FROM events WHERE events.committed_id = event_partitions.committed_id);

-- name: sync_unchecked
-- Partitions with events that were not yet applied to their state.
SELECT partition FROM unchecked;

-- name: sync_mark_unchecked
-- A partition has such events.
INSERT INTO unchecked (partition) VALUES (?) ON CONFLICT (partition) DO NOTHING;

-- name: sync_unmark_unchecked
-- A partition has none any more.
DELETE FROM unchecked WHERE partition = ?;

-- name: sync_find
-- What is known of an id, before a commit or a rejection of it is stored.
SELECT status, committed_id, partitions FROM events WHERE id = ?;

-- name: sync_insert_committed
-- A commit of an event this store has never seen. Another event at its position is found by the caller.
INSERT INTO events (id, committed_id, type, payload, extra, partitions, client_id, status, created_at,
                    status_updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, 'committed', ?, ?)
ON CONFLICT (committed_id) WHERE committed_id IS NOT NULL DO NOTHING;

-- name: sync_confirm
-- The server committed a draft as it was submitted.
UPDATE events
SET status = 'committed', committed_id = ?, status_updated_at = ?, reject_reason = NULL, errors = NULL
WHERE id = ?;

-- name: sync_confirm_with_content
-- The log holds this id: its content counts, whatever the local row said.
UPDATE events
SET status = 'committed', committed_id = ?, status_updated_at = ?, reject_reason = NULL, errors = NULL,
    type = ?, payload = ?, extra = ?, partitions = ?, client_id = ?
WHERE id = ?;

-- name: sync_reject
-- A draft was refused; a row that is committed stays so.
UPDATE events SET status = 'rejected', status_updated_at = ?, reject_reason = ?, errors = ?
WHERE id = ? AND status != 'committed';

-- name: sync_cursor
-- How far one partition has been fetched.
SELECT committed_id FROM cursors WHERE partition = ?;

-- name: sync_cursors
-- How far every partition has been fetched.
SELECT partition, committed_id FROM cursors;

-- name: sync_raise_cursor
-- A page was stored; a cursor never goes back by this.
INSERT INTO cursors (partition, committed_id) VALUES (?, ?)
ON CONFLICT (partition) DO UPDATE SET committed_id = max(committed_id, excluded.committed_id);

-- name: sync_raise_to_snapshot
-- A partition that lacks nothing was fetched as far as its snapshot goes.
INSERT INTO cursors (partition, committed_id)
SELECT partition, committed_id FROM snapshots WHERE partition = ?
ON CONFLICT (partition) DO UPDATE SET committed_id = max(committed_id, excluded.committed_id);

-- name: sync_drop_cursor
-- Fetch the partition from 0 again.
DELETE FROM cursors WHERE partition = ?;

-- name: sync_drop_cursors
-- Fetch everything from 0 again.
DELETE FROM cursors;

-- name: sync_lower_cursors
-- The log was taken back: nothing after this position has been fetched.
UPDATE cursors SET committed_id = ? WHERE committed_id > ?;

-- name: sync_drop_pruned_cursors
-- Partitions whose early rows are gone can only be rebuilt from the server.
DELETE FROM cursors WHERE partition IN (SELECT partition FROM pruned);

-- name: sync_snapshot
-- The committed state of one partition at a position.
SELECT state, committed_id, model_version FROM snapshots WHERE partition = ?;

-- name: sync_snapshots
-- All snapshots, without their states.
SELECT partition, committed_id, created_at, model_version FROM snapshots ORDER BY partition;

-- name: sync_snapshots_from
-- Snapshots that a commit at this position or after it could contradict.
SELECT partition, committed_id FROM snapshots WHERE committed_id >= ?;

-- name: sync_snapshots_after
-- Partitions whose state includes events after a position.
SELECT partition FROM snapshots WHERE committed_id > ?;

-- name: sync_save_snapshot
-- The newest state of a partition replaces the one before.
INSERT INTO snapshots (partition, state, committed_id, created_at, model_version) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (partition) DO UPDATE
SET state = excluded.state, committed_id = excluded.committed_id, created_at = excluded.created_at,
    model_version = excluded.model_version;

-- name: sync_drop_snapshot
-- The state of a partition is no longer true.
DELETE FROM snapshots WHERE partition = ?;

-- name: sync_drop_snapshots
-- No state is true any more.
DELETE FROM snapshots;

-- name: sync_is_pruned
-- Whether rows of a partition are gone.
SELECT 1 FROM pruned WHERE partition = ?;

-- name: sync_pruned
-- All partitions that rows are gone of.
SELECT partition FROM pruned;

-- name: sync_mark_as_pruned
-- Early rows of a partition are not here.
INSERT INTO pruned (partition) VALUES (?) ON CONFLICT (partition) DO NOTHING;

-- name: sync_mark_pruned
-- Remember whose rows the next statement removes.
INSERT INTO pruned (partition)
SELECT DISTINCT member.value
FROM events, json_each(events.partitions) AS member
WHERE events.committed_id IS NOT NULL
  AND NOT EXISTS (
    SELECT 1
    FROM json_each(events.partitions) AS needed
    LEFT JOIN snapshots ON snapshots.partition = needed.value AND snapshots.model_version = ?
    LEFT JOIN cursors ON cursors.partition = needed.value
    WHERE min(coalesce(snapshots.committed_id, 0), coalesce(cursors.committed_id, ?))
      < events.committed_id
  )
ON CONFLICT (partition) DO NOTHING;

-- name: sync_prune
-- Remove committed rows that every one of their partitions has a snapshot of, and was fetched beyond:
-- a row that could be fetched again would look like one that its snapshot lacks. The last
-- parameter stands for the cursor of a partition that has none.
DELETE FROM events
WHERE committed_id IS NOT NULL
  AND NOT EXISTS (
    SELECT 1
    FROM json_each(events.partitions) AS needed
    LEFT JOIN snapshots ON snapshots.partition = needed.value AND snapshots.model_version = ?
    LEFT JOIN cursors ON cursors.partition = needed.value
    WHERE min(coalesce(snapshots.committed_id, 0), coalesce(cursors.committed_id, ?))
      < events.committed_id
  );

-- name: sync_unmark_pruned
-- The partition is fetched from 0 again, so nothing of it counts as gone.
DELETE FROM pruned WHERE partition = ?;

-- name: sync_unmark_all_pruned
-- Everything is fetched from 0 again.
DELETE FROM pruned;

-- name: sync_drop_committed
-- Forget the log; the server tells it again.
DELETE FROM events WHERE committed_id IS NOT NULL;

-- name: sync_drop_committed_after
-- Forget the part of the log that is another one now.
DELETE FROM events WHERE committed_id > ?;

-- name: sync_wipe_committed
-- Remove committed rows of a partition that no partition with a cursor has.
DELETE FROM events
WHERE committed_id IN (SELECT committed_id FROM event_partitions WHERE partition = ?)
  AND NOT EXISTS (
    SELECT 1 FROM json_each(events.partitions) AS member
    JOIN cursors ON cursors.partition = member.value
  );

-- name: sync_wipe_rejected
-- The same for rejected rows.
DELETE FROM events
WHERE status = 'rejected'
  AND EXISTS (SELECT 1 FROM json_each(events.partitions) WHERE value = ?)
  AND NOT EXISTS (
    SELECT 1 FROM json_each(events.partitions) AS member
    JOIN cursors ON cursors.partition = member.value
  );

-- name: sync_drop_rejected
-- The application has seen its rejections and wants the room back.
DELETE FROM events WHERE status = 'rejected';

-- name: sync_rescue_drafts_up
-- Where drafts are, by their index. This and the next are read from a damaged file.
SELECT rowid FROM events INDEXED BY events_draft WHERE status = 'draft' ORDER BY draft_clock, id;

-- name: sync_rescue_drafts_down
-- The same from the other end, to get beyond a damaged page.
SELECT rowid FROM events INDEXED BY events_draft WHERE status = 'draft' ORDER BY draft_clock DESC, id DESC;

-- name: sync_rescue_rows_up
-- Where drafts and rejected events are, by the table itself.
SELECT rowid FROM events NOT INDEXED WHERE +committed_id IS NULL ORDER BY rowid;

-- name: sync_rescue_rows_down
-- The same from the other end.
SELECT rowid FROM events NOT INDEXED WHERE +committed_id IS NULL ORDER BY rowid DESC;

-- name: sync_rescue_row
-- A whole row by its number in the table.
SELECT id, committed_id, type, payload, extra, partitions, client_id, status, draft_clock, created_at,
       status_updated_at, reject_reason, errors
FROM events NOT INDEXED WHERE rowid = ? AND +committed_id IS NULL;

-- name: sync_rescue_binding
-- Whose file it is.
SELECT value FROM binding WHERE name = 'client_id';

-- name: sync_insert_rescued
-- A row of another file.
INSERT INTO events (id, committed_id, type, payload, extra, partitions, client_id, status, draft_clock,
                    created_at, status_updated_at, reject_reason, errors)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING;

-- name: sync_bound
-- What the file is bound to: its client, or the history of the log that it follows.
SELECT value FROM binding WHERE name = ?;

-- name: sync_bind
-- Bind the file.
INSERT INTO binding (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
