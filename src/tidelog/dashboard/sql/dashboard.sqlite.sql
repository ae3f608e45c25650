-- name: dashboard_log
-- Entries between two positions that a filter lets through, newest first, without their content.
SELECT committed_id, stream, stream_serial, surface, kind, entity, ref, actor, committed_at,
       coalesce(length(body), 0) + coalesce(length(data), 0)
FROM log WHERE committed_id > ?1 AND committed_id <= ?2
  AND (?3 = '' OR surface = ?3) AND substr(stream, 1, length(?4)) = ?4
  AND substr(kind, 1, length(?5)) = ?5 AND substr(actor, 1, length(?6)) = ?6
ORDER BY committed_id DESC LIMIT ?7;

-- name: dashboard_channels
-- The channels of the newest messages, the most recently created message first.
SELECT r.stream, coalesce(c.history_serial, 0), max(r.published_at), sum(r.is_open), max(r.message)
FROM (SELECT stream, published_at, is_open, message FROM channels_message ORDER BY message DESC LIMIT ?1) r
LEFT JOIN channels_channel c ON c.stream = r.stream
GROUP BY r.stream, c.history_serial ORDER BY max(r.message) DESC LIMIT ?2;

-- name: dashboard_channels_named
-- Channels between two names, in their order.
SELECT c.stream, c.history_serial,
       (SELECT m.published_at FROM channels_message m WHERE m.stream = c.stream
        ORDER BY m.history_serial DESC LIMIT 1),
       (SELECT coalesce(sum(n.is_open), 0) FROM
        (SELECT m.is_open FROM channels_message m WHERE m.stream = c.stream
         ORDER BY m.history_serial DESC LIMIT 100) n)
FROM channels_channel c WHERE c.stream >= ?1 AND c.stream < ?2 ORDER BY c.stream LIMIT ?3;

-- name: dashboard_meshes
-- The meshes there are.
SELECT id, slug, created_at FROM mesh_setting ORDER BY slug LIMIT ?;

-- name: dashboard_members
-- The members of a mesh, those that were revoked last.
SELECT member_pubkey, name, created_at, revoked_at FROM mesh_member
WHERE mesh_id = ? ORDER BY revoked_at IS NOT NULL, name LIMIT ?;

-- name: dashboard_waiting
-- Unfinished deliveries by recipient and state, of as many as may be looked at.
SELECT u.recipient_pubkey, u.channel, u.status, count(*), min(u.created_at)
FROM (SELECT recipient_pubkey, channel, status, created_at FROM mesh_delivery_queue
      WHERE mesh_id = ?1 AND status IN ('pending', 'claimed') LIMIT ?2) u
GROUP BY u.recipient_pubkey, u.channel, u.status ORDER BY 4 DESC LIMIT 500;

-- name: dashboard_sends
-- The newest sends of a mesh, each with every delivery of it.
SELECT l.stream_serial, l.entity, l.kind, l.ref, coalesce(m.name, l.actor), l.committed_at,
       q.recipient_pubkey, q.channel, q.status, q.attempts, q.last_error, q.delivered_at
FROM (SELECT stream_serial, entity, kind, ref, actor, committed_at FROM log
      WHERE stream = 'mesh/' || ?1 ORDER BY stream_serial DESC LIMIT ?2) l
LEFT JOIN mesh_member m ON m.id = l.actor
LEFT JOIN mesh_delivery_queue q ON q.broker_message_id = l.entity
ORDER BY l.stream_serial DESC, q.recipient_pubkey, q.channel LIMIT ?3;
