-- name: mesh_verify_deliveries
-- Deliveries after one of them, the entries of their messages, and whether the recipient is known.
SELECT q.broker_message_id, q.recipient_pubkey, q.channel, q.endpoint_id, q.mesh_id, q.history_id,
       q.created_at,
       CASE WHEN q.channel <> 'push' OR q.recipient_pubkey LIKE 'queue:%' THEN 1
            ELSE (SELECT count(*) FROM mesh_member k
                  WHERE k.mesh_id = q.mesh_id AND k.member_pubkey = q.recipient_pubkey) END,
       l.entity, l.kind, l.ref, l.committed_at
FROM (SELECT * FROM mesh_delivery_queue
      WHERE (broker_message_id, recipient_pubkey, channel, endpoint_id)
        > (?, ?, ?, ?)
      ORDER BY broker_message_id, recipient_pubkey, channel, endpoint_id LIMIT ?) q
LEFT JOIN log l ON l.stream = 'mesh/' || q.mesh_id AND l.stream_serial = q.history_id
ORDER BY q.broker_message_id, q.recipient_pubkey, q.channel, q.endpoint_id;

-- name: mesh_verify_mentions
-- Mentions after one of them, and the entries of their messages.
SELECT m.broker_message_id, m.mentioned_pubkey, m.mesh_id, m.history_id, m.created_at, l.entity,
       l.committed_at, l.body
FROM (SELECT * FROM mesh_mention_index
      WHERE (broker_message_id, mentioned_pubkey) > (?, ?)
      ORDER BY broker_message_id, mentioned_pubkey LIMIT ?) m
LEFT JOIN log l ON l.stream = 'mesh/' || m.mesh_id AND l.stream_serial = m.history_id
ORDER BY m.broker_message_id, m.mentioned_pubkey;

-- name: mesh_verify_ids
-- Ids after one of them, the entries that they were committed with, and whether mesh and sender are known.
SELECT d.scope, d.key, d.owner, d.outcome, d.first_seen_at, l.stream_serial, l.entity, l.kind, l.ref,
       l.actor, l.committed_at, l.body,
       (SELECT count(*) FROM mesh_setting k WHERE k.id = substr(d.scope, 6)),
       (SELECT count(*) FROM mesh_member k WHERE k.id = d.owner)
FROM (SELECT * FROM dedupe
      WHERE (scope, key) > (?, ?) AND scope >= 'mesh/' AND scope < 'mesh0'
      ORDER BY scope, key LIMIT ?) d
LEFT JOIN log l ON l.committed_id = d.committed_id AND l.stream = d.scope
ORDER BY d.scope, d.key;
