-- Mesh: who is gone, and what still waits for it; who made topics and queues.

-- A recipient that gets nothing up to a message: a former member, or a queue that was deleted. It is noted until
-- its open deliveries are closed.
CREATE TABLE mesh_ended_recipient (
  mesh_id          TEXT NOT NULL,
  recipient_pubkey TEXT NOT NULL,
  reason           TEXT NOT NULL,
  through          INTEGER NOT NULL,
  seal             BLOB,
  PRIMARY KEY (mesh_id, recipient_pubkey)
) STRICT, WITHOUT ROWID;

-- Deliveries to former members were left open until now.
INSERT INTO mesh_ended_recipient (mesh_id, recipient_pubkey, reason, through, seal)
SELECT mesh_id, member_pubkey, 'member_revoked', 9223372036854775807,
       seal(mesh_id, member_pubkey, 'member_revoked', 9223372036854775807)
FROM mesh_member WHERE revoked_at IS NOT NULL;

-- The member's id; NULL where nobody noted it. It is part of the seal: of rows whose seal is right.
ALTER TABLE mesh_topic ADD COLUMN created_by TEXT;
ALTER TABLE mesh_queue ADD COLUMN created_by TEXT;

UPDATE mesh_topic SET seal = seal(mesh_id, name, created_at, created_by) WHERE seal = seal(mesh_id, name, created_at);
UPDATE mesh_queue SET seal = seal(mesh_id, id, created_at, created_by) WHERE seal = seal(mesh_id, id, created_at);

CREATE INDEX mesh_topic_creator ON mesh_topic (mesh_id, created_by);
CREATE INDEX mesh_queue_creator ON mesh_queue (mesh_id, created_by);
