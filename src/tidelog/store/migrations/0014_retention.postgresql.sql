-- How far retention has come along the log, so that it goes on from there.

CREATE TABLE tidelog.retention (
  name    TEXT COLLATE "C" PRIMARY KEY,
  through BIGINT NOT NULL,
  seal    BYTEA
);
