-- name: sync_add_partition
-- Events in partitions.
INSERT INTO tidelog.sync_event_partitions (partition, committed_id)
SELECT * FROM unnest($1::text[], $2::bigint[]);

-- name: sync_positions
-- Where the next events of any of the partitions are.
SELECT DISTINCT page.committed_id
FROM unnest($1::text[]) AS named (partition),
LATERAL (
  SELECT p.committed_id FROM tidelog.sync_event_partitions p
  WHERE p.partition = named.partition AND p.committed_id > $2::bigint AND p.committed_id <= $3::bigint
  ORDER BY p.committed_id LIMIT $4::bigint
) AS page ORDER BY page.committed_id LIMIT $4::bigint;

-- name: sync_partitions_between
-- Names of partitions in ranges, both ends excluded: one look into the index for each (sync 21.2).
SELECT asked.number, found.partition
FROM unnest($1::text[], $2::text[], $3::bigint[])
  WITH ORDINALITY AS asked (after, before, most, number),
LATERAL (
  WITH RECURSIVE named (partition) AS (
    SELECT min(p.partition) FROM tidelog.sync_event_partitions p
    WHERE p.partition > asked.after COLLATE "C" AND p.partition < asked.before COLLATE "C"
    UNION ALL
    SELECT (SELECT min(p.partition) FROM tidelog.sync_event_partitions p
            WHERE p.partition > named.partition AND p.partition < asked.before COLLATE "C")
    FROM named WHERE named.partition IS NOT NULL
  )
  SELECT partition FROM named WHERE partition IS NOT NULL LIMIT asked.most
) AS found ORDER BY asked.number, found.partition;

-- name: sync_event
-- Events by their positions, until they are too large together; bodies that were pruned come from the
-- archive (sync D57). The sum needs the sizes only: a body that is not part of the page is not read.
SELECT page.committed_id, page.committed_at, page.body
FROM (
  SELECT named.number, l.committed_id, l.committed_at, coalesce(l.body, a.body) AS body,
         sum(octet_length(coalesce(l.body, a.body))) OVER (ORDER BY named.number) AS total
  FROM unnest($1::bigint[]) WITH ORDINALITY AS named (committed_id, number)
  JOIN tidelog.log l USING (committed_id)
  LEFT JOIN tidelog.sync_events_archive a USING (committed_id)
) AS page WHERE page.total <= $2::bigint OR page.number = 1 ORDER BY page.number;

-- name: sync_last_event
-- The last sync event at or before a position: the watermark of a cycle (sync D38).
SELECT named.number, last.committed_id
FROM unnest($1::bigint[]) WITH ORDINALITY AS named (position, number),
LATERAL (
  SELECT committed_id FROM tidelog.log WHERE stream = 'sync' AND committed_id <= named.position
  ORDER BY stream_serial DESC LIMIT 1
) AS last;

-- name: sync_snapshot
-- The stored state of the named partitions.
SELECT named.number, s.state, s.committed_id, s.model_version, s.digest
FROM unnest($1::text[]) WITH ORDINALITY AS named (partition, number)
JOIN tidelog.sync_snapshots s USING (partition);

-- name: sync_snapshot_within
-- The same, if they are of a model version, as of no later position, and not too large.
SELECT named.number, s.state, s.committed_id, s.digest
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[])
  WITH ORDINALITY AS named (partition, version, through, most, number)
JOIN tidelog.sync_snapshots s USING (partition)
WHERE s.model_version = named.version AND s.committed_id BETWEEN 1 AND named.through
  AND octet_length(s.state) <= named.most;

-- name: sync_put_snapshot
-- A newer state of partitions; never an older one. One batch may bring several of the same.
INSERT INTO tidelog.sync_snapshots AS s
  (partition, state, committed_id, created_at, model_version, digest, seal)
SELECT DISTINCT ON (partition) partition, state, committed_id, created_at, model_version, digest,
  tidelog.seal(json_build_array(
    partition, encode(state, 'hex'), committed_id, created_at, model_version, encode(digest, 'hex')))
FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[])
  WITH ORDINALITY AS named (partition, state, committed_id, created_at, model_version, digest, number)
ORDER BY partition, committed_id DESC, number DESC
ON CONFLICT (partition) DO UPDATE SET state = excluded.state, committed_id = excluded.committed_id,
  created_at = excluded.created_at, model_version = excluded.model_version, digest = excluded.digest,
  seal = excluded.seal
WHERE excluded.committed_id >= s.committed_id;

-- name: sync_setting
-- One stored number.
SELECT named.number, s.value
FROM unnest($1::text[]) WITH ORDINALITY AS named (name, number)
JOIN tidelog.sync_settings s USING (name);

-- name: sync_put_setting
-- Store numbers; of several under one name the last.
INSERT INTO tidelog.sync_settings (name, value, seal)
SELECT DISTINCT ON (name) name, value, tidelog.seal(json_build_array(name, value))
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (name, value, number)
ORDER BY name, number DESC
ON CONFLICT (name) DO UPDATE SET value = excluded.value, seal = excluded.seal;

-- name: sync_prunable
-- Events after a position whose every partition has a snapshot at or beyond them; their bodies may go.
SELECT named.number, found.committed_id, found.stream_serial
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[])
  WITH ORDINALITY AS named (after, through, most, number),
LATERAL (
  SELECT l.committed_id, l.stream_serial FROM tidelog.log l
  WHERE l.stream = 'sync' AND l.stream_serial > named.after AND l.body IS NOT NULL
    AND l.committed_id <= named.through
    AND NOT EXISTS (
      SELECT 1 FROM tidelog.sync_event_partitions p
      LEFT JOIN tidelog.sync_snapshots s USING (partition)
      WHERE p.committed_id = l.committed_id AND coalesce(s.committed_id, 0) < p.committed_id)
  ORDER BY l.stream_serial LIMIT named.most
) AS found;

-- name: sync_archived
-- Kept bodies of pruned events.
SELECT named.number, a.body
FROM unnest($1::bigint[]) WITH ORDINALITY AS named (committed_id, number)
JOIN tidelog.sync_events_archive a USING (committed_id);

-- name: sync_archive
-- Keep the bodies where sync still reads them.
INSERT INTO tidelog.sync_events_archive (committed_id, body)
SELECT committed_id, body FROM tidelog.log
WHERE committed_id = ANY($1::bigint[]) AND body IS NOT NULL
ON CONFLICT (committed_id) DO NOTHING;
