-- name: look_again
-- Within a transaction the server remembers who was connected; this makes it forget.
SELECT pg_stat_clear_snapshot();

-- name: other_tidelogs
-- How many connections other tidelog processes have to this database: a server keeps at least one.
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'tidelog' AND pid <> pg_backend_pid();

-- name: has_log
-- Whether anything was ever appended; a server that was only started leaves a head at 0.
SELECT EXISTS (SELECT FROM tidelog.log) OR EXISTS (SELECT FROM tidelog.head WHERE committed_id > 0);

-- name: size_of_table
-- What one of them takes.
SELECT pg_total_relation_size(('tidelog.' || $1::text)::regclass);

-- name: size
-- What the tables take on disk, with their indexes.
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
WHERE relkind = 'r' AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'tidelog');
