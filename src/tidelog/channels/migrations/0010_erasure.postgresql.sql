-- What was erased of channels, and what is still to be erased.

-- A message; or all messages of a channel up to one, then `message` is 0; or what an actor wrote, then `stream`
-- is what the streams of its app begin with. Rows stay: the lake learns from them what to forget. Steps: asked
-- for, emptied, erased.
CREATE TABLE tidelog.channels_erasure (
  stream       TEXT COLLATE "C" NOT NULL,
  actor        TEXT COLLATE "C" NOT NULL,
  message      BIGINT NOT NULL,
  through      BIGINT NOT NULL,
  searched     BIGINT NOT NULL,
  step         BIGINT NOT NULL,
  requested_at BIGINT NOT NULL,
  requested_by TEXT COLLATE "C" NOT NULL,
  reason       TEXT COLLATE "C" NOT NULL,
  seal         BYTEA,
  PRIMARY KEY (stream, actor, message)
);

CREATE INDEX channels_erasure_step ON tidelog.channels_erasure (step) WHERE step < 2;
