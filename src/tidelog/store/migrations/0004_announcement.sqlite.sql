-- Announcements between nodes are for PostgreSQL: one process owns an SQLite file, and there is nobody
-- to tell.
;
