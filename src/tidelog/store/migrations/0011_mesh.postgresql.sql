-- Mesh: who is gone, and what still waits for it.

-- A recipient that gets nothing up to a message: a former member, or a queue that was deleted. It is noted until
-- its open deliveries are closed.
CREATE TABLE tidelog.mesh_ended_recipient (
  mesh_id          TEXT COLLATE "C" NOT NULL,
  recipient_pubkey TEXT COLLATE "C" NOT NULL,
  reason           TEXT COLLATE "C" NOT NULL,
  through          BIGINT NOT NULL,
  seal             BYTEA,
  PRIMARY KEY (mesh_id, recipient_pubkey)
);

-- Deliveries to former members were left open until now.
INSERT INTO tidelog.mesh_ended_recipient (mesh_id, recipient_pubkey, reason, through, seal)
SELECT mesh_id, member_pubkey, 'member_revoked', 9223372036854775807, tidelog.seal(json_build_array(
         mesh_id, member_pubkey, 'member_revoked', 9223372036854775807))
FROM tidelog.mesh_member WHERE revoked_at IS NOT NULL;
