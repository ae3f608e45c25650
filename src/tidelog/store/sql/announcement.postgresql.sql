-- name: announce
-- Tell the other nodes. The lock makes ids visible in their order, so that who has read up to one has
-- missed none before it; head is at least what was committed before this was asked for.
WITH one_at_a_time AS MATERIALIZED (
  SELECT pg_advisory_xact_lock(8390880602276325477)
), added AS (
  INSERT INTO tidelog.announcement (node, topic, payload, head, at)
  SELECT $1, given.topic, given.payload, head.committed_id,
         (extract(epoch FROM clock_timestamp()) * 1000)::bigint
  FROM one_at_a_time, tidelog.head,
       unnest($2::text[], $3::bytea[]) WITH ORDINALITY AS given (topic, payload, number)
  ORDER BY given.number
  RETURNING id
), told AS (
  SELECT pg_notify('tidelog_announcement', max(id)::text) FROM added
)
SELECT added.id FROM added, told ORDER BY added.id;

-- name: announcements_after
-- What other nodes announced, in order.
SELECT id, topic, payload, head,
       greatest(0, (extract(epoch FROM clock_timestamp()) * 1000)::bigint - at)
FROM tidelog.announcement
WHERE id > $1 AND node <> $2 ORDER BY id LIMIT $3;

-- name: last_announcement
-- Where a node begins to listen.
SELECT coalesce(max(id), 0) FROM tidelog.announcement;

-- name: announcement_keeper
-- Which run of the server keeps announcements: a new one has forgotten them, the table is unlogged.
-- Its counter may have gone back if the server is a replica that took over.
SELECT extract(epoch FROM pg_postmaster_start_time())::text, last_value FROM tidelog.announcement_id;

-- name: sweep_announcements
-- Everybody has heard these, or was away for too long.
DELETE FROM tidelog.announcement
WHERE at < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1::bigint;
