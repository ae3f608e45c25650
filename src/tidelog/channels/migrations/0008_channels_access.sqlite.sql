-- Channels: streams that are being written are found without looking at every message of a channel,
-- and revoked tokens stay revoked.

CREATE INDEX channels_message_open ON channels_message (stream, message, published_at) WHERE is_open = 1;

-- `at` is when it was revoked, in ms. A row is needed only as long as a token of before could be valid.
CREATE TABLE channels_revocation (
  app_id TEXT NOT NULL,
  kind   TEXT NOT NULL,
  value  TEXT NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (app_id, kind, value)
) STRICT, WITHOUT ROWID;

-- Nodes read what was revoked since they last looked, and the oldest go first.
CREATE INDEX channels_revocation_at ON channels_revocation (at, app_id, kind, value);
