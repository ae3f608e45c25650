-- History: what is asked of a channel with a million messages is looked up, not counted.

-- Where a time is in the history of a channel: times never fall along it.
CREATE INDEX channels_message_published ON tidelog.channels_message (stream, published_at, history_serial);

-- How many messages a stretch of a history holds, and their bytes. Stretches are of 256 and of 65,536 history
-- serials, each beginning at a multiple of its width: what follows any serial is the sum of a few.
CREATE TABLE tidelog.channels_stretch (
  stream     TEXT COLLATE "C" NOT NULL,
  width      BIGINT NOT NULL,
  number     BIGINT NOT NULL,
  messages   BIGINT NOT NULL,
  size_bytes BIGINT NOT NULL,
  PRIMARY KEY (stream, width, number)
);

INSERT INTO tidelog.channels_stretch (stream, width, number, messages, size_bytes)
SELECT stream, 256, history_serial / 256, count(*), sum(size_bytes) FROM tidelog.channels_message
GROUP BY stream, history_serial / 256;

INSERT INTO tidelog.channels_stretch (stream, width, number, messages, size_bytes)
SELECT stream, 65536, number / 256, sum(messages), sum(size_bytes) FROM tidelog.channels_stretch
GROUP BY stream, number / 256;

-- Whoever writes messages writes their stretches, in the same transaction: publishing, folding, retention and
-- erasure alike. Once for each statement, whatever number of messages it writes.
CREATE FUNCTION tidelog.channels_message_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tidelog.channels_stretch AS s (stream, width, number, messages, size_bytes)
  SELECT a.stream, w.width, a.history_serial / w.width, count(*), sum(a.size_bytes)
  FROM added a, (VALUES (256::bigint), (65536)) AS w (width) GROUP BY 1, 2, 3
  ON CONFLICT (stream, width, number) DO UPDATE SET messages = s.messages + excluded.messages,
    size_bytes = s.size_bytes + excluded.size_bytes;
  RETURN NULL;
END $$;

CREATE FUNCTION tidelog.channels_message_resized() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE tidelog.channels_stretch s SET size_bytes = s.size_bytes + changed.size_bytes
  FROM (SELECT a.stream, w.width, a.history_serial / w.width AS number,
               sum(a.size_bytes - b.size_bytes)::bigint AS size_bytes
        FROM after_it a JOIN before_it b USING (message), (VALUES (256::bigint), (65536)) AS w (width)
        WHERE a.size_bytes <> b.size_bytes GROUP BY 1, 2, 3) AS changed
  WHERE s.stream = changed.stream AND s.width = changed.width AND s.number = changed.number;
  RETURN NULL;
END $$;

CREATE FUNCTION tidelog.channels_message_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE tidelog.channels_stretch s SET messages = s.messages - gone.messages,
    size_bytes = s.size_bytes - gone.size_bytes
  FROM (SELECT r.stream, w.width, r.history_serial / w.width AS number, count(*) AS messages,
               sum(r.size_bytes)::bigint AS size_bytes
        FROM removed r, (VALUES (256::bigint), (65536)) AS w (width) GROUP BY 1, 2, 3) AS gone
  WHERE s.stream = gone.stream AND s.width = gone.width AND s.number = gone.number;
  DELETE FROM tidelog.channels_stretch s
  USING (SELECT DISTINCT r.stream, w.width, r.history_serial / w.width AS number
         FROM removed r, (VALUES (256::bigint), (65536)) AS w (width)) AS gone
  WHERE s.stream = gone.stream AND s.width = gone.width AND s.number = gone.number AND s.messages = 0;
  RETURN NULL;
END $$;

CREATE TRIGGER channels_message_added AFTER INSERT ON tidelog.channels_message
REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION tidelog.channels_message_added();

CREATE TRIGGER channels_message_resized AFTER UPDATE ON tidelog.channels_message
REFERENCING OLD TABLE AS before_it NEW TABLE AS after_it
FOR EACH STATEMENT EXECUTE FUNCTION tidelog.channels_message_resized();

CREATE TRIGGER channels_message_removed AFTER DELETE ON tidelog.channels_message
REFERENCING OLD TABLE AS removed
FOR EACH STATEMENT EXECUTE FUNCTION tidelog.channels_message_removed();
