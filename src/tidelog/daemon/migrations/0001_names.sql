-- Which key a member's name stood for when the broker was last asked or heard (mesh 3.2).

-- "tdnm": what tells our files from those of other applications.
PRAGMA application_id = 0x74646e6d;

CREATE TABLE member_name (
  name          TEXT PRIMARY KEY,
  member_pubkey TEXT NOT NULL,
  -- counts the changes: the least was not changed for longest
  noted         INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX member_name_noted ON member_name (noted);
