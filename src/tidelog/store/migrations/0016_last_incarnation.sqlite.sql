-- The head says how many incarnations there were, so that the last one cannot be lost without a trace.

ALTER TABLE head ADD COLUMN incarnation INTEGER NOT NULL DEFAULT 1;

UPDATE head SET incarnation = coalesce((SELECT max(number) FROM incarnation), 1);
UPDATE head SET seal = seal(only_row, log_id, committed_id, digest, committed_at, incarnation);
