-- name: lock_schema
-- Several nodes may start at once; one of them changes the schema at a time.
SELECT pg_advisory_xact_lock(8390880602276325476);

-- name: create_schema
-- Everything of ours lives in its own schema.
CREATE SCHEMA IF NOT EXISTS tidelog;
CREATE TABLE IF NOT EXISTS tidelog.schema_version (version BIGINT NOT NULL);

-- name: has_schema
-- Whether this database has ever been a store.
SELECT to_regclass('tidelog.schema_version');

-- name: schema_version
-- Number of the last migration; 0 before the first.
SELECT coalesce(max(version), 0) FROM tidelog.schema_version;

-- name: set_schema_version
-- One row per migration that ran.
INSERT INTO tidelog.schema_version (version) VALUES ($1);
