-- Settings of a mesh that can change, and member tokens that stay used when the process ends.

-- The shortest time this mesh ever remembered ids; NULL if they never expired. A message that is older
-- may have lost its id, whatever the settings are now.
ALTER TABLE mesh_setting ADD COLUMN shortest_window_days INTEGER;

UPDATE mesh_setting SET shortest_window_days = dedupe_retention_days
WHERE dedupe_retention_mode = 'retention_scoped';

CREATE TABLE mesh_used_token (
  token      TEXT PRIMARY KEY,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX mesh_used_token_expiry ON mesh_used_token (expires_at);
