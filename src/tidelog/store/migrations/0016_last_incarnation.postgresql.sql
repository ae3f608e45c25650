-- The head says how many incarnations there were, so that the last one cannot be lost without a trace.

ALTER TABLE tidelog.head ADD COLUMN incarnation BIGINT NOT NULL DEFAULT 1;

UPDATE tidelog.head SET incarnation = coalesce((SELECT max(number) FROM tidelog.incarnation), 1);
UPDATE tidelog.head SET seal = tidelog.seal(json_build_array(only_row, log_id, committed_id,
  encode(digest, 'hex'), committed_at, incarnation));
