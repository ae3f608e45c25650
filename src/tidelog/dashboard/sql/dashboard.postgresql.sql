-- name: dashboard_log
-- Entries between two positions that a filter lets through, newest first, without their content.
SELECT named.number, found.*
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[])
  WITH ORDINALITY AS named (low, high, surface, stream, kind, actor, most, number),
LATERAL (
  SELECT l.committed_id, l.stream, l.stream_serial, l.surface, l.kind, l.entity, l.ref, l.actor,
         l.committed_at, coalesce(octet_length(l.body), 0) + coalesce(octet_length(l.data), 0)
  FROM tidelog.log l WHERE l.committed_id > named.low AND l.committed_id <= named.high
    AND (named.surface = '' OR l.surface = named.surface) AND starts_with(l.stream, named.stream)
    AND starts_with(l.kind, named.kind) AND starts_with(l.actor, named.actor)
  ORDER BY l.committed_id DESC LIMIT named.most
) AS found ORDER BY named.number, found.committed_id DESC;

-- name: dashboard_channels
-- The channels of the newest messages, the most recently created message first.
SELECT named.number, found.*
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS named (looked_at, most, number),
LATERAL (
  SELECT r.stream, coalesce(c.history_serial, 0), max(r.published_at), sum(r.is_open)::bigint,
         max(r.message) AS newest
  FROM (SELECT m.stream, m.published_at, m.is_open, m.message FROM tidelog.channels_message m
        ORDER BY m.message DESC LIMIT named.looked_at) r
  LEFT JOIN tidelog.channels_channel c ON c.stream = r.stream
  GROUP BY r.stream, c.history_serial ORDER BY max(r.message) DESC LIMIT named.most
) AS found ORDER BY named.number, found.newest DESC;

-- name: dashboard_channels_named
-- Channels between two names, in their order.
SELECT named.number, found.*
FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS named (low, high, most, number),
LATERAL (
  SELECT c.stream, c.history_serial,
         (SELECT m.published_at FROM tidelog.channels_message m WHERE m.stream = c.stream
          ORDER BY m.history_serial DESC LIMIT 1),
         (SELECT coalesce(sum(n.is_open), 0)::bigint FROM
          (SELECT m.is_open FROM tidelog.channels_message m WHERE m.stream = c.stream
           ORDER BY m.history_serial DESC LIMIT 100) n)
  FROM tidelog.channels_channel c WHERE c.stream >= named.low AND c.stream < named.high
  ORDER BY c.stream LIMIT named.most
) AS found ORDER BY named.number, found.stream;

-- name: dashboard_meshes
-- The meshes there are.
SELECT named.number, found.*
FROM unnest($1::bigint[]) WITH ORDINALITY AS named (most, number),
LATERAL (
  SELECT s.id, s.slug, s.created_at FROM tidelog.mesh_setting s ORDER BY s.slug LIMIT named.most
) AS found ORDER BY named.number, found.slug;

-- name: dashboard_members
-- The members of a mesh, those that were revoked last.
SELECT named.number, found.*
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (mesh_id, most, number),
LATERAL (
  SELECT m.member_pubkey, m.name, m.created_at, m.revoked_at FROM tidelog.mesh_member m
  WHERE m.mesh_id = named.mesh_id ORDER BY m.revoked_at IS NOT NULL, m.name LIMIT named.most
) AS found ORDER BY named.number, found.revoked_at IS NOT NULL, found.name;

-- name: dashboard_waiting
-- Unfinished deliveries by recipient and state, of as many as may be looked at.
SELECT named.number, found.*
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS named (mesh_id, looked_at, number),
LATERAL (
  SELECT u.recipient_pubkey, u.channel, u.status, count(*) AS deliveries, min(u.created_at)
  FROM (SELECT q.recipient_pubkey, q.channel, q.status, q.created_at FROM tidelog.mesh_delivery_queue q
        WHERE q.mesh_id = named.mesh_id AND q.status IN ('pending', 'claimed') LIMIT named.looked_at) u
  GROUP BY u.recipient_pubkey, u.channel, u.status ORDER BY count(*) DESC LIMIT 500
) AS found ORDER BY named.number, found.deliveries DESC;

-- name: dashboard_sends
-- The newest sends of a mesh, each with every delivery of it.
SELECT named.number, found.*
FROM unnest($1::text[], $2::bigint[], $3::bigint[])
  WITH ORDINALITY AS named (mesh_id, sends, most, number),
LATERAL (
  SELECT l.stream_serial, l.entity, l.kind, l.ref, coalesce(m.name, l.actor), l.committed_at,
         q.recipient_pubkey, q.channel, q.status, q.attempts, q.last_error, q.delivered_at
  FROM (SELECT e.stream_serial, e.entity, e.kind, e.ref, e.actor, e.committed_at FROM tidelog.log e
        WHERE e.stream = 'mesh/' || named.mesh_id ORDER BY e.stream_serial DESC LIMIT named.sends) l
  LEFT JOIN tidelog.mesh_member m ON m.id = l.actor
  LEFT JOIN tidelog.mesh_delivery_queue q ON q.broker_message_id = l.entity
  ORDER BY l.stream_serial DESC, q.recipient_pubkey, q.channel LIMIT named.most
) AS found ORDER BY named.number, found.stream_serial DESC, found.recipient_pubkey, found.channel;
