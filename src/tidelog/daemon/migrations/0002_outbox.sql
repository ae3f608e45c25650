-- What the caller asked for, and what it was taken for: a name may mean another member later (mesh 3.2).

-- `to` as it was written; NULL in rows of before.
ALTER TABLE outbox ADD COLUMN asked_to TEXT;
-- The destination of the payload, which outlives it.
ALTER TABLE outbox ADD COLUMN destination_ref TEXT;
