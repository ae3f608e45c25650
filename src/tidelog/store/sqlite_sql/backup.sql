-- name: schema_objects
-- Everything the schema consists of, and the table it belongs to; tables first.
SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema ORDER BY type <> 'table', type, name;
