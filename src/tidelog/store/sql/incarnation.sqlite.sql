-- name: incarnations
-- Those that are known, the current one last; one without a name has not begun.
SELECT id, began, at, number FROM incarnation WHERE id <> '' ORDER BY number;

-- name: first_incarnation
-- Of a new log, with its head; a log that lost its incarnations must not get a first one again.
INSERT INTO incarnation (number, id, began, at, seal)
SELECT 1, ?1, 0, ?2, seal(1, ?1, 0, ?2) FROM head
WHERE committed_id = 0 AND NOT EXISTS (SELECT 1 FROM incarnation);

-- name: add_incarnation
-- What comes after position `began` is another history than before. One without a name waits for
-- whoever serves the copy it is in, and is the last.
INSERT INTO incarnation (number, id, began, at, seal)
SELECT last + 1, ?1, ?2, ?3, seal(last + 1, ?1, ?2, ?3)
FROM (SELECT coalesce(max(number), 0) AS last FROM incarnation)
WHERE NOT EXISTS (SELECT 1 FROM incarnation WHERE id = '');

-- name: count_incarnation
-- With every one that is added: the head tells if it is missing later.
UPDATE head SET incarnation = incarnation + 1,
  seal = seal(only_row, log_id, committed_id, digest, committed_at, incarnation + 1);

-- name: incarnation_numbers
-- The last number by the head, and those that are there.
SELECT incarnation, (SELECT min(number) FROM incarnation), (SELECT max(number) FROM incarnation),
       (SELECT count(*) FROM incarnation)
FROM head;

-- name: name_incarnation
-- Somebody serves, or restores, a copy that a backup made.
UPDATE incarnation SET id = ?1, at = ?2, seal = seal(number, ?1, began, ?2) WHERE id = '';

-- name: forget_incarnations
-- The current one and some former ones are kept; a reader of an older one begins again.
DELETE FROM incarnation WHERE number < (SELECT max(number) FROM incarnation) - ?;

-- name: digest_at
-- By which a node knows its log again.
SELECT digest FROM log WHERE committed_id = ?;
