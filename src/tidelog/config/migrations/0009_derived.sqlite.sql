-- Seals: rows beside the log show when they were changed (tidelog.base.seal).

-- Each of these tables is sealed row by row, over all its other columns. Rows that are there already are
-- sealed as they are, where they are few and stay; others are sealed when they are written again.
ALTER TABLE head ADD COLUMN seal BLOB;
ALTER TABLE incarnation ADD COLUMN seal BLOB;
ALTER TABLE channels_revocation ADD COLUMN seal BLOB;
ALTER TABLE sync_snapshots ADD COLUMN seal BLOB;
ALTER TABLE sync_settings ADD COLUMN seal BLOB;
ALTER TABLE mesh_setting ADD COLUMN seal BLOB;
ALTER TABLE mesh_member ADD COLUMN seal BLOB;
ALTER TABLE mesh_topic ADD COLUMN seal BLOB;
ALTER TABLE mesh_topic_subscription ADD COLUMN seal BLOB;
ALTER TABLE mesh_queue ADD COLUMN seal BLOB;
ALTER TABLE mesh_invite ADD COLUMN seal BLOB;
ALTER TABLE mesh_webhook ADD COLUMN seal BLOB;
ALTER TABLE dedupe ADD COLUMN seal BLOB;
ALTER TABLE mesh_delivery_queue ADD COLUMN seal BLOB;
ALTER TABLE mesh_mention_index ADD COLUMN seal BLOB;
ALTER TABLE mesh_message_tombstone ADD COLUMN seal BLOB;
ALTER TABLE mesh_used_token ADD COLUMN seal BLOB;

UPDATE head SET seal = seal(only_row, log_id, committed_id, digest, committed_at);
UPDATE incarnation SET seal = seal(number, id, began, at);
UPDATE channels_revocation SET seal = seal(app_id, kind, value, at);
UPDATE sync_snapshots SET seal = seal(partition, state, committed_id, created_at, model_version, digest);
UPDATE sync_settings SET seal = seal(name, value);
UPDATE mesh_setting SET seal = seal(id, slug, dedupe_retention_mode, dedupe_retention_days,
  message_retention_days, echo_to_sender, rate_limit, rate_window_ms, clone_concurrency_policy, created_at,
  shortest_window_days);
UPDATE mesh_member SET seal = seal(id, mesh_id, member_pubkey, name, created_at, revoked_at);
UPDATE mesh_topic SET seal = seal(mesh_id, name, created_at);
UPDATE mesh_topic_subscription SET seal = seal(mesh_id, topic, member_pubkey, created_at);
UPDATE mesh_queue SET seal = seal(mesh_id, id, created_at);
UPDATE mesh_invite SET seal = seal(invite_hash, mesh_id, created_at, expires_at, used_at, used_by);
UPDATE mesh_webhook SET seal = seal(id, mesh_id, topic, url, secret, created_at, disabled_at);

-- What the log does not tell of a channel: how often it was reset, and up to where it was emptied. A channel
-- that has no such seal was neither.
ALTER TABLE channels_channel ADD COLUMN floors_seal BLOB;

UPDATE channels_channel SET floors_seal = seal(stream, epoch, history_floor, replay_floor)
WHERE epoch <> 0 OR history_floor <> 0 OR replay_floor <> 0;

-- What versions that were emptied made of a message. A base without a seal was written by an earlier
-- version.
ALTER TABLE channels_message ADD COLUMN base_seal BLOB;
