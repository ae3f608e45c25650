-- What a view is built from, without looking at the events of other partitions; and what is still to
-- be checked, so that a connection costs what has changed and not what there is.

CREATE TABLE event_partitions (
  partition    TEXT NOT NULL,
  committed_id INTEGER NOT NULL,
  PRIMARY KEY (partition, committed_id)
) STRICT, WITHOUT ROWID;

-- An event whose partitions cannot be read fails this: such a file is damaged, and replaced.
INSERT OR IGNORE INTO event_partitions (partition, committed_id)
SELECT member.value, events.committed_id
FROM events, json_each(events.partitions) AS member
WHERE events.committed_id IS NOT NULL;

-- Partitions with committed events that were not yet applied to their state.
CREATE TABLE unchecked (
  partition TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- Whether earlier versions came to the end of their check cannot be told.
INSERT INTO unchecked (partition) SELECT DISTINCT partition FROM event_partitions;
