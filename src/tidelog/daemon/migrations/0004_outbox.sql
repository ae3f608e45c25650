-- What was delivered must not take the room of what is to be (mesh 4.5).

-- Bytes of content that are kept, of rows that are final (1) and of all others (0).
CREATE TABLE outbox_bytes (is_final INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);

INSERT INTO outbox_bytes
SELECT final.is_final, (
  SELECT coalesce(sum(length(payload)), 0) FROM outbox
  WHERE (status = 'aborted' OR status = 'done' AND lost_in IS NULL) = final.is_final
) FROM (SELECT 0 AS is_final UNION ALL SELECT 1) AS final;

CREATE TRIGGER outbox_bytes_insert AFTER INSERT ON outbox BEGIN
  UPDATE outbox_bytes SET bytes = bytes + length(new.payload)
  WHERE is_final = (new.status = 'aborted' OR new.status = 'done' AND new.lost_in IS NULL);
END;

CREATE TRIGGER outbox_bytes_update AFTER UPDATE OF status, payload, lost_in ON outbox BEGIN
  UPDATE outbox_bytes SET bytes = bytes - length(old.payload)
  WHERE is_final = (old.status = 'aborted' OR old.status = 'done' AND old.lost_in IS NULL);
  UPDATE outbox_bytes SET bytes = bytes + length(new.payload)
  WHERE is_final = (new.status = 'aborted' OR new.status = 'done' AND new.lost_in IS NULL);
END;

-- Final rows that still have content, by when they became final: what is emptied first.
CREATE INDEX outbox_kept ON outbox (coalesce(aborted_at, delivered_at))
WHERE (status = 'aborted' OR status = 'done' AND lost_in IS NULL) AND length(payload) > 0;

-- What waits, oldest first, and when it is due: a turn reads no row that it does not attempt.
DROP INDEX outbox_waiting;
CREATE INDEX outbox_waiting ON outbox (enqueued_at, id, next_attempt_at) WHERE status = 'pending';
