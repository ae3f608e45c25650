-- name: schema_objects
-- Everything the schema consists of, and the table it belongs to; tables first.
SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema ORDER BY type <> 'table', type, name;

-- name: used_bytes
-- What the pages take that are in use.
SELECT (p.page_count - f.freelist_count) * s.page_size
FROM pragma_page_count p, pragma_freelist_count f, pragma_page_size s;
