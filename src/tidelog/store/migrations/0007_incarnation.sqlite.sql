-- Which continuation of the log this is: a restore or a failover begins another one.

-- The last row is the current one. An empty id was left by a backup: whoever serves the copy names it.
CREATE TABLE incarnation (
  number INTEGER PRIMARY KEY,
  id     TEXT NOT NULL,
  began  INTEGER NOT NULL,
  at     INTEGER NOT NULL
) STRICT;

-- A log that is there already; a new one gets its first incarnation with its head.
INSERT INTO incarnation (number, id, began, at)
SELECT 1, lower(hex(randomblob(16))), 0, CAST(strftime('%s', 'now') AS INTEGER) * 1000 FROM head;
