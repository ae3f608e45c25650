-- name: names_key
-- Whom a name stands for.
SELECT member_pubkey FROM member_name WHERE name = ?;

-- name: names_note
-- A name stands for this key from now on.
INSERT INTO member_name (name, member_pubkey, noted)
VALUES (?, ?, (SELECT coalesce(max(noted), 0) + 1 FROM member_name))
ON CONFLICT (name) DO UPDATE SET member_pubkey = excluded.member_pubkey, noted = excluded.noted;

-- name: names_forget
-- Nobody has this name.
DELETE FROM member_name WHERE name = ?;

-- name: names_trim
-- All but so many, those first that have not changed for longest.
DELETE FROM member_name WHERE name IN (
  SELECT name FROM member_name ORDER BY noted
  LIMIT max(0, (SELECT count(*) FROM member_name) - ?)
);
