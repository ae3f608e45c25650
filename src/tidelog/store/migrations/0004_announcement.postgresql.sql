-- What nodes tell each other beside the log: transient frames, evictions. Not durable; gone in a minute.

-- Logged, unlike the table: ids never go back, also after a crash of the server.
CREATE SEQUENCE tidelog.announcement_id AS BIGINT;

CREATE UNLOGGED TABLE tidelog.announcement (
  id      BIGINT PRIMARY KEY DEFAULT nextval('tidelog.announcement_id'),
  node    TEXT COLLATE "C" NOT NULL,
  topic   TEXT COLLATE "C" NOT NULL,
  payload BYTEA NOT NULL,
  head    BIGINT NOT NULL,
  at      BIGINT NOT NULL
);
