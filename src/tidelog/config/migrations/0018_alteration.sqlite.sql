-- Alterations: what changed of the rows beside the log without an entry, so that a lake reads it again.

-- A row says that something of `relation` is not what it was: what belongs to the entry at `position`, or to what is
-- called `name` in a `scope`. What comes with an entry is told by the log and is not here. Numbers follow the
-- order of commits. The newest million is kept: who has read less reads the whole relation again.
CREATE TABLE alteration (
  number   INTEGER PRIMARY KEY,
  relation TEXT NOT NULL,
  position INTEGER NOT NULL,
  scope    TEXT NOT NULL,
  name     TEXT NOT NULL
) STRICT;

CREATE TRIGGER alteration_pruned AFTER INSERT ON alteration WHEN NEW.number % 1000 = 0
BEGIN
  DELETE FROM alteration WHERE number <= NEW.number - 1000000;
END;

-- Keys are found by their entry, whoever's they are.
DROP INDEX dedupe_committed;
CREATE INDEX dedupe_entry ON dedupe (committed_id);

CREATE TRIGGER dedupe_added AFTER INSERT ON dedupe WHEN NEW.committed_id IS NULL
BEGIN
  INSERT INTO alteration (relation, position, scope, name) VALUES ('dedupe', 0, NEW.scope, NEW.key);
END;

CREATE TRIGGER dedupe_changed AFTER UPDATE ON dedupe WHEN NEW.available <> OLD.available
BEGIN
  INSERT INTO alteration (relation, position, scope, name)
  SELECT 'dedupe', coalesce(NEW.committed_id, 0), CASE WHEN NEW.committed_id IS NULL THEN NEW.scope ELSE '' END,
         CASE WHEN NEW.committed_id IS NULL THEN NEW.key ELSE '' END;
END;

CREATE TRIGGER dedupe_removed AFTER DELETE ON dedupe
BEGIN
  INSERT INTO alteration (relation, position, scope, name)
  SELECT 'dedupe', coalesce(OLD.committed_id, 0), CASE WHEN OLD.committed_id IS NULL THEN OLD.scope ELSE '' END,
         CASE WHEN OLD.committed_id IS NULL THEN OLD.key ELSE '' END;
END;

CREATE TRIGGER channels_message_purged AFTER DELETE ON channels_message
BEGIN
  INSERT INTO alteration (relation, position, scope, name) VALUES ('channel_message', OLD.message, '', '');
END;

-- A lease is no alteration: it ends within seconds, and what then becomes of the delivery is one.
CREATE TRIGGER mesh_delivery_changed AFTER UPDATE ON mesh_delivery_queue
WHEN NEW.status <> 'claimed' OR OLD.status = 'claimed'
BEGIN
  INSERT INTO alteration (relation, position, scope, name)
  VALUES ('delivery', NEW.history_id, NEW.mesh_id, NEW.broker_message_id);
END;

CREATE TRIGGER mesh_delivery_removed AFTER DELETE ON mesh_delivery_queue
BEGIN
  INSERT INTO alteration (relation, position, scope, name)
  VALUES ('delivery', OLD.history_id, OLD.mesh_id, OLD.broker_message_id);
END;

CREATE TRIGGER mesh_mention_removed AFTER DELETE ON mesh_mention_index
BEGIN
  INSERT INTO alteration (relation, position, scope, name)
  VALUES ('mention', OLD.history_id, OLD.mesh_id, OLD.broker_message_id);
END;

CREATE TRIGGER mesh_tombstone_added AFTER INSERT ON mesh_message_tombstone
BEGIN
  INSERT INTO alteration (relation, position, scope, name)
  VALUES ('tombstone', 0, NEW.mesh_id, NEW.broker_message_id);
END;
