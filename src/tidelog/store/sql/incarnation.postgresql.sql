-- name: incarnations
-- Those that are known, the current one last.
SELECT 1, id, began, at, number FROM tidelog.incarnation WHERE id <> '' ORDER BY number;

-- name: first_incarnation
-- Of a new log, with its head; a log that lost its incarnations must not get a first one again.
INSERT INTO tidelog.incarnation (number, id, began, at, seal)
SELECT 1, $1, 0, $2, tidelog.seal(json_build_array(1, $1::text, 0, $2::bigint)) FROM tidelog.head
WHERE committed_id = 0 AND NOT EXISTS (SELECT FROM tidelog.incarnation)
ON CONFLICT (number) DO NOTHING;

-- name: add_incarnation
-- What comes after position `began` is another history than before. One without a name is in a backup
-- that is being restored, and is the last.
INSERT INTO tidelog.incarnation (number, id, began, at, seal)
SELECT last + 1, given.id, given.began, given.at,
       tidelog.seal(json_build_array(last + 1, given.id, given.began, given.at))
FROM (SELECT coalesce(max(number), 0) AS last FROM tidelog.incarnation) AS known,
     unnest($1::text[], $2::bigint[], $3::bigint[]) AS given (id, began, at)
WHERE NOT EXISTS (SELECT FROM tidelog.incarnation WHERE id = '');

-- name: count_incarnation
-- With every one that is added: the head tells if it is missing later.
UPDATE tidelog.head SET incarnation = incarnation + 1,
  seal = tidelog.seal(json_build_array(only_row, log_id, committed_id, encode(digest, 'hex'), committed_at,
    incarnation + 1));

-- name: incarnation_numbers
-- The last number by the head, and those that are there.
SELECT 1, head.incarnation, (SELECT min(number) FROM tidelog.incarnation),
       (SELECT max(number) FROM tidelog.incarnation), (SELECT count(*) FROM tidelog.incarnation)
FROM tidelog.head AS head;

-- name: name_incarnation
-- A copy that a backup made is being restored.
UPDATE tidelog.incarnation
SET id = $1, at = $2, seal = tidelog.seal(json_build_array(number, $1::text, began, $2::bigint))
WHERE id = '';

-- name: forget_incarnations
-- The current one and some former ones are kept; a reader of an older one begins again.
DELETE FROM tidelog.incarnation USING unnest($1::bigint[]) AS kept (former)
WHERE number < (SELECT max(number) FROM tidelog.incarnation) - kept.former;

-- name: digest_at
-- By which a node knows its log again.
SELECT named.number, digest
FROM unnest($1::bigint[]) WITH ORDINALITY AS named (position, number)
JOIN tidelog.log ON committed_id = named.position;
