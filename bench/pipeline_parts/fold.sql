-- What `message` is made of `message_version` by, in DuckDB's SQL: the same windows, the same columns.
COPY (
  WITH steps AS (
    SELECT *,
      coalesce(sum(CASE WHEN action = 'append' THEN 0 ELSE 1 END) OVER (
        PARTITION BY app_id, channel, message_serial ORDER BY committed_id DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) = 0 AS counts
    FROM read_parquet(getvariable('files'))
  ), messages AS (
    SELECT app_id, channel, message_serial,
      max(history_serial) AS history_serial,
      arg_max({'action': action, 'name': name, 'data_bytes': data_bytes, 'extras': extras,
               'tags': tags, 'creator': creator, 'client_id': client_id,
               'description': description, 'metadata': metadata,
               'delivery_serial': delivery_serial}, committed_id) AS newest,
      list(data ORDER BY committed_id) FILTER (WHERE counts AND data IS NOT NULL) AS parts,
      count(*) AS versions,
      count(*) FILTER (WHERE action = 'append') AS appends,
      min(committed_id) AS first_committed_id,
      max(committed_id) AS last_committed_id,
      min(committed_at) AS published_at,
      max(committed_at) AS updated_at,
      bool_and(NOT counts OR is_available) AS is_complete
    FROM steps GROUP BY app_id, channel, message_serial
  )
  SELECT app_id, channel, message_serial, history_serial,
    CASE WHEN newest.action = 'delete' THEN 'deleted' ELSE 'visible' END AS state,
    unnest(newest),
    CASE
      WHEN NOT is_complete OR len(parts) = 0 THEN NULL
      WHEN len(parts) = 1 THEN parts[1]
      ELSE '"' || list_aggregate(list_transform(parts, lambda part: part[2:-2]), 'string_agg', '') || '"'
    END AS data,
    versions, appends, first_committed_id, last_committed_id, published_at, updated_at, is_complete
  FROM messages
) TO '{target}' (FORMAT parquet, COMPRESSION zstd);
