-- Which continuation of the log this is: a restore or a failover begins another one.

-- The last row is the current one.
CREATE TABLE tidelog.incarnation (
  number BIGINT PRIMARY KEY,
  id     TEXT COLLATE "C" NOT NULL,
  began  BIGINT NOT NULL,
  at     BIGINT NOT NULL
);

-- A log that is there already; a new one gets its first incarnation with its head.
INSERT INTO tidelog.incarnation (number, id, began, at)
SELECT 1, replace(gen_random_uuid()::text, '-', ''), 0, extract(epoch FROM now())::bigint * 1000
FROM tidelog.head;
