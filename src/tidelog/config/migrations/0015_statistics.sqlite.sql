-- SQLite keeps no samples of content; the number belongs to PostgreSQL.
SELECT 1;
