-- What the server refused, without looking through everything it committed.
CREATE INDEX events_rejected ON events (draft_clock, id) WHERE status = 'rejected';
