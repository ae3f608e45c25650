-- History: what is asked of a channel with a million messages is looked up, not counted.

-- Where a time is in the history of a channel: times never fall along it.
CREATE INDEX channels_message_published ON channels_message (stream, published_at, history_serial);

-- How many messages a stretch of a history holds, and their bytes. Stretches are of 256 and of 65,536 history
-- serials, each beginning at a multiple of its width: what follows any serial is the sum of a few.
CREATE TABLE channels_stretch (
  stream     TEXT NOT NULL,
  width      INTEGER NOT NULL,
  number     INTEGER NOT NULL,
  messages   INTEGER NOT NULL,
  size_bytes INTEGER NOT NULL,
  PRIMARY KEY (stream, width, number)
) STRICT, WITHOUT ROWID;

INSERT INTO channels_stretch (stream, width, number, messages, size_bytes)
SELECT stream, 256, history_serial / 256, count(*), sum(size_bytes) FROM channels_message
GROUP BY stream, history_serial / 256;

INSERT INTO channels_stretch (stream, width, number, messages, size_bytes)
SELECT stream, 65536, number / 256, sum(messages), sum(size_bytes) FROM channels_stretch
GROUP BY stream, number / 256;

-- Whoever writes a message writes its stretches, in the same transaction: publishing, folding, retention and
-- erasure alike.
CREATE TRIGGER channels_message_added AFTER INSERT ON channels_message
BEGIN
  INSERT INTO channels_stretch (stream, width, number, messages, size_bytes)
  VALUES (NEW.stream, 256, NEW.history_serial / 256, 1, NEW.size_bytes)
  ON CONFLICT (stream, width, number) DO UPDATE SET messages = messages + 1,
    size_bytes = size_bytes + excluded.size_bytes;
  INSERT INTO channels_stretch (stream, width, number, messages, size_bytes)
  VALUES (NEW.stream, 65536, NEW.history_serial / 65536, 1, NEW.size_bytes)
  ON CONFLICT (stream, width, number) DO UPDATE SET messages = messages + 1,
    size_bytes = size_bytes + excluded.size_bytes;
END;

CREATE TRIGGER channels_message_resized AFTER UPDATE OF size_bytes ON channels_message
WHEN NEW.size_bytes <> OLD.size_bytes
BEGIN
  UPDATE channels_stretch SET size_bytes = size_bytes + NEW.size_bytes - OLD.size_bytes
  WHERE stream = NEW.stream AND width = 256 AND number = NEW.history_serial / 256;
  UPDATE channels_stretch SET size_bytes = size_bytes + NEW.size_bytes - OLD.size_bytes
  WHERE stream = NEW.stream AND width = 65536 AND number = NEW.history_serial / 65536;
END;

CREATE TRIGGER channels_message_removed AFTER DELETE ON channels_message
BEGIN
  UPDATE channels_stretch SET messages = messages - 1, size_bytes = size_bytes - OLD.size_bytes
  WHERE stream = OLD.stream AND width = 256 AND number = OLD.history_serial / 256;
  UPDATE channels_stretch SET messages = messages - 1, size_bytes = size_bytes - OLD.size_bytes
  WHERE stream = OLD.stream AND width = 65536 AND number = OLD.history_serial / 65536;
  DELETE FROM channels_stretch WHERE stream = OLD.stream AND width = 256
    AND number = OLD.history_serial / 256 AND messages = 0;
  DELETE FROM channels_stretch WHERE stream = OLD.stream AND width = 65536
    AND number = OLD.history_serial / 65536 AND messages = 0;
END;
