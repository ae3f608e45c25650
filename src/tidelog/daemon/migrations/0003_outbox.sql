-- What a broker has lost again: its log was restored, and goes on as another history (mesh 4.7).

-- The history in which the row became `done`; NULL from a broker that has no name for it.
ALTER TABLE outbox ADD COLUMN incarnation TEXT;
-- The history that perhaps has not got it any more; NULL while there is no doubt.
ALTER TABLE outbox ADD COLUMN lost_in TEXT;

CREATE INDEX outbox_lost ON outbox (status) WHERE lost_in IS NOT NULL;
