-- Settings of a mesh that can change, and member tokens that stay used when the database crashes.

-- The shortest time this mesh ever remembered ids; NULL if they never expired. A message that is older
-- may have lost its id, whatever the settings are now.
ALTER TABLE tidelog.mesh_setting ADD COLUMN shortest_window_days BIGINT;

UPDATE tidelog.mesh_setting SET shortest_window_days = dedupe_retention_days
WHERE dedupe_retention_mode = 'retention_scoped';

DROP TABLE mesh.used_token;

CREATE TABLE tidelog.mesh_used_token (
  token      TEXT COLLATE "C" PRIMARY KEY,
  expires_at BIGINT NOT NULL
);

CREATE INDEX mesh_used_token_expiry ON tidelog.mesh_used_token (expires_at);
