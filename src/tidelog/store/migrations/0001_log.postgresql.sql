-- The log, its head, the dedupe table and the last batch of each writer.

CREATE TABLE tidelog.log (
  committed_id  BIGINT PRIMARY KEY,
  stream        TEXT COLLATE "C" NOT NULL,
  stream_serial BIGINT NOT NULL,
  surface       TEXT COLLATE "C" NOT NULL,
  kind          TEXT COLLATE "C" NOT NULL,
  entity        TEXT COLLATE "C" NOT NULL,
  ref           TEXT COLLATE "C" NOT NULL,
  actor         TEXT COLLATE "C" NOT NULL,
  committed_at  BIGINT NOT NULL,
  body          BYTEA,
  data          BYTEA,
  body_digest   BYTEA NOT NULL,
  digest        BYTEA NOT NULL
);

CREATE UNIQUE INDEX log_stream_serial ON tidelog.log (stream, stream_serial);

CREATE TABLE tidelog.head (
  only_row     BIGINT PRIMARY KEY CHECK (only_row = 1),
  log_id       TEXT COLLATE "C" NOT NULL,
  committed_id BIGINT NOT NULL,
  digest       BYTEA NOT NULL,
  committed_at BIGINT NOT NULL
) WITH (fillfactor = 10);

CREATE TABLE tidelog.dedupe (
  scope         TEXT COLLATE "C" NOT NULL,
  key           TEXT COLLATE "C" NOT NULL,
  committed_id  BIGINT,
  fingerprint   BYTEA NOT NULL,
  owner         TEXT COLLATE "C" NOT NULL,
  outcome       BYTEA NOT NULL,
  available     BIGINT NOT NULL,
  first_seen_at BIGINT NOT NULL,
  expires_at    BIGINT,
  PRIMARY KEY (scope, key)
);

CREATE INDEX dedupe_expiry ON tidelog.dedupe (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE tidelog.writer (
  node         TEXT COLLATE "C" PRIMARY KEY,
  batch_id     BYTEA NOT NULL,
  committed_at BIGINT NOT NULL
) WITH (fillfactor = 10);
