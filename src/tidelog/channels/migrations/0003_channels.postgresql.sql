-- Channels: what a channel remembers of itself, its messages, and which versions a message has.

CREATE TABLE tidelog.channels_channel (
  stream         TEXT COLLATE "C" PRIMARY KEY,
  epoch          BIGINT NOT NULL,
  history_serial BIGINT NOT NULL,
  history_floor  BIGINT NOT NULL,
  replay_floor   BIGINT NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE tidelog.channels_message (
  message        BIGINT PRIMARY KEY,
  stream         TEXT COLLATE "C" NOT NULL,
  history_serial BIGINT NOT NULL,
  published_at   BIGINT NOT NULL,
  is_open        BIGINT NOT NULL,
  size_bytes     BIGINT NOT NULL,
  through        BIGINT NOT NULL,
  state          BYTEA,
  base           BYTEA
);

CREATE UNIQUE INDEX channels_message_history ON tidelog.channels_message (stream, history_serial);

CREATE TABLE tidelog.channels_version (
  message      BIGINT NOT NULL,
  committed_id BIGINT NOT NULL,
  PRIMARY KEY (message, committed_id)
);

-- Receipts end with the version they name; this is how they are found.
CREATE INDEX dedupe_committed ON tidelog.dedupe (committed_id)
WHERE scope >= 'channels/' AND scope < 'channels0';
