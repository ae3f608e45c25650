-- Mesh: who is gone, and what still waits for it.

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
