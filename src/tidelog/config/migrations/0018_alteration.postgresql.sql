-- Alterations: what changed of the rows beside the log without an entry, so that a lake reads it again.

-- A row says that something of `relation` is not what it was: what belongs to the entry at `position`, or to what is
-- called `name` in a `scope`. What comes with an entry is told by the log and is not here. Numbers follow the
-- order of commits. The newest million is kept: who has read less reads the whole relation again.
CREATE TABLE tidelog.alteration (
  number   BIGINT PRIMARY KEY,
  relation TEXT COLLATE "C" NOT NULL,
  position BIGINT NOT NULL,
  scope    TEXT COLLATE "C" NOT NULL,
  name     TEXT COLLATE "C" NOT NULL
);

CREATE SEQUENCE tidelog.alteration_number OWNED BY tidelog.alteration.number;

-- Numbers must follow the order of commits, so only one transaction at a time takes some. Whoever holds the head's
-- lock waits for nobody; this is for somebody with another program.
CREATE FUNCTION tidelog.next_alteration() RETURNS BIGINT LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('tidelog.alteration', 0));
  RETURN nextval('tidelog.alteration_number');
END $$;

CREATE FUNCTION tidelog.alteration_pruned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM tidelog.alteration WHERE number <= NEW.number - 1000000;
  RETURN NULL;
END $$;

CREATE TRIGGER alteration_pruned AFTER INSERT ON tidelog.alteration
FOR EACH ROW WHEN (NEW.number % 1000 = 0) EXECUTE FUNCTION tidelog.alteration_pruned();

-- Keys are found by their entry, whoever's they are.
DROP INDEX tidelog.dedupe_committed;
CREATE INDEX dedupe_entry ON tidelog.dedupe (committed_id);

CREATE FUNCTION tidelog.dedupe_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tidelog.alteration (number, relation, position, scope, name)
  SELECT tidelog.next_alteration(), 'dedupe', coalesce(committed_id, 0),
         CASE WHEN committed_id IS NULL THEN scope ELSE '' END, CASE WHEN committed_id IS NULL THEN key ELSE '' END
  FROM rows WHERE scope <> '';
  RETURN NULL;
END $$;

CREATE FUNCTION tidelog.dedupe_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tidelog.alteration (number, relation, position, scope, name)
  VALUES (tidelog.next_alteration(), 'dedupe', 0, NEW.scope, NEW.key);
  RETURN NULL;
END $$;

CREATE TRIGGER dedupe_added AFTER INSERT ON tidelog.dedupe
FOR EACH ROW WHEN (NEW.committed_id IS NULL AND NEW.scope <> '') EXECUTE FUNCTION tidelog.dedupe_added();

CREATE TRIGGER dedupe_changed AFTER UPDATE ON tidelog.dedupe REFERENCING NEW TABLE AS rows
FOR EACH STATEMENT EXECUTE FUNCTION tidelog.dedupe_changed();

CREATE TRIGGER dedupe_removed AFTER DELETE ON tidelog.dedupe REFERENCING OLD TABLE AS rows
FOR EACH STATEMENT EXECUTE FUNCTION tidelog.dedupe_changed();

CREATE FUNCTION tidelog.channels_message_purged() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tidelog.alteration (number, relation, position, scope, name)
  SELECT tidelog.next_alteration(), 'channel_message', message, '', '' FROM rows;
  RETURN NULL;
END $$;

CREATE TRIGGER channels_message_purged AFTER DELETE ON tidelog.channels_message REFERENCING OLD TABLE AS rows
FOR EACH STATEMENT EXECUTE FUNCTION tidelog.channels_message_purged();

CREATE FUNCTION tidelog.mesh_delivery_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tidelog.alteration (number, relation, position, scope, name)
  VALUES (tidelog.next_alteration(), 'delivery', NEW.history_id, NEW.mesh_id, NEW.broker_message_id);
  RETURN NULL;
END $$;

-- A lease is no alteration: it ends within seconds, and what then becomes of the delivery is one.
CREATE TRIGGER mesh_delivery_changed AFTER UPDATE ON tidelog.mesh_delivery_queue
FOR EACH ROW WHEN (NEW.status <> 'claimed' OR OLD.status = 'claimed')
EXECUTE FUNCTION tidelog.mesh_delivery_changed();

CREATE FUNCTION tidelog.mesh_delivery_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tidelog.alteration (number, relation, position, scope, name)
  SELECT tidelog.next_alteration(), 'delivery', history_id, mesh_id, broker_message_id FROM rows;
  RETURN NULL;
END $$;

CREATE TRIGGER mesh_delivery_removed AFTER DELETE ON tidelog.mesh_delivery_queue REFERENCING OLD TABLE AS rows
FOR EACH STATEMENT EXECUTE FUNCTION tidelog.mesh_delivery_removed();

CREATE FUNCTION tidelog.mesh_mention_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tidelog.alteration (number, relation, position, scope, name)
  SELECT tidelog.next_alteration(), 'mention', history_id, mesh_id, broker_message_id FROM rows;
  RETURN NULL;
END $$;

CREATE TRIGGER mesh_mention_removed AFTER DELETE ON tidelog.mesh_mention_index REFERENCING OLD TABLE AS rows
FOR EACH STATEMENT EXECUTE FUNCTION tidelog.mesh_mention_removed();

CREATE FUNCTION tidelog.mesh_tombstone_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tidelog.alteration (number, relation, position, scope, name)
  SELECT tidelog.next_alteration(), 'tombstone', 0, mesh_id, broker_message_id FROM rows;
  RETURN NULL;
END $$;

CREATE TRIGGER mesh_tombstone_added AFTER INSERT ON tidelog.mesh_message_tombstone REFERENCING NEW TABLE AS rows
FOR EACH STATEMENT EXECUTE FUNCTION tidelog.mesh_tombstone_added();
