-- Seals: rows beside the log show when they were changed (tidelog.base.seal).

CREATE FUNCTION tidelog.seal(row_values JSON) RETURNS BYTEA LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT substr(sha256(convert_to(json_strip_nulls(row_values)::text, 'UTF8')), 1, 8)
$$;

-- Each of these tables is sealed row by row, over all its other columns. Rows that are there already are
-- sealed as they are, where they are few and stay; others are sealed when they are written again.
ALTER TABLE tidelog.head ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.incarnation ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.channels_revocation ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.sync_snapshots ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.sync_settings ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.mesh_setting ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.mesh_member ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.mesh_topic ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.mesh_topic_subscription ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.mesh_queue ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.mesh_invite ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.mesh_webhook ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.dedupe ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.mesh_delivery_queue ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.mesh_mention_index ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.mesh_message_tombstone ADD COLUMN seal BYTEA;
ALTER TABLE tidelog.mesh_used_token ADD COLUMN seal BYTEA;

UPDATE tidelog.head SET seal = tidelog.seal(json_build_array(only_row, log_id, committed_id,
  encode(digest, 'hex'), committed_at));
UPDATE tidelog.incarnation SET seal = tidelog.seal(json_build_array(number, id, began, at));
UPDATE tidelog.channels_revocation SET seal = tidelog.seal(json_build_array(app_id, kind, value, at));
UPDATE tidelog.sync_snapshots SET seal = tidelog.seal(json_build_array(partition, encode(state, 'hex'),
  committed_id, created_at, model_version, encode(digest, 'hex')));
UPDATE tidelog.sync_settings SET seal = tidelog.seal(json_build_array(name, value));
UPDATE tidelog.mesh_setting SET seal = tidelog.seal(json_build_array(id, slug, dedupe_retention_mode,
  dedupe_retention_days, message_retention_days, echo_to_sender, rate_limit, rate_window_ms,
  clone_concurrency_policy, created_at, shortest_window_days));
UPDATE tidelog.mesh_member SET seal = tidelog.seal(json_build_array(id, mesh_id, member_pubkey, name,
  created_at, revoked_at));
UPDATE tidelog.mesh_topic SET seal = tidelog.seal(json_build_array(mesh_id, name, created_at));
UPDATE tidelog.mesh_topic_subscription SET seal = tidelog.seal(json_build_array(mesh_id, topic,
  member_pubkey, created_at));
UPDATE tidelog.mesh_queue SET seal = tidelog.seal(json_build_array(mesh_id, id, created_at));
UPDATE tidelog.mesh_invite SET seal = tidelog.seal(json_build_array(encode(invite_hash, 'hex'), mesh_id,
  created_at, expires_at, used_at, used_by));
UPDATE tidelog.mesh_webhook SET seal = tidelog.seal(json_build_array(id, mesh_id, topic, url, secret,
  created_at, disabled_at));

-- What the log does not tell of a channel: how often it was reset, and up to where it was emptied. A channel
-- that has no such seal was neither.
ALTER TABLE tidelog.channels_channel ADD COLUMN floors_seal BYTEA;

UPDATE tidelog.channels_channel
SET floors_seal = tidelog.seal(json_build_array(stream, epoch, history_floor, replay_floor))
WHERE epoch <> 0 OR history_floor <> 0 OR replay_floor <> 0;

-- What versions that were emptied made of a message. A base without a seal was written by an earlier
-- version.
ALTER TABLE tidelog.channels_message ADD COLUMN base_seal BYTEA;
