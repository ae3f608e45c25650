-- Mesh: who is gone, and what still waits for it; who made topics and queues; shares of the rate limiter.

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

-- The member's id; NULL where nobody noted it. It is part of the seal: of rows whose seal is right.
ALTER TABLE tidelog.mesh_topic ADD COLUMN created_by TEXT COLLATE "C";
ALTER TABLE tidelog.mesh_queue ADD COLUMN created_by TEXT COLLATE "C";

UPDATE tidelog.mesh_topic SET seal = tidelog.seal(json_build_array(mesh_id, name, created_at, created_by))
WHERE seal = tidelog.seal(json_build_array(mesh_id, name, created_at));
UPDATE tidelog.mesh_queue SET seal = tidelog.seal(json_build_array(mesh_id, id, created_at, created_by))
WHERE seal = tidelog.seal(json_build_array(mesh_id, id, created_at));

CREATE INDEX mesh_topic_creator ON tidelog.mesh_topic (mesh_id, created_by);
CREATE INDEX mesh_queue_creator ON tidelog.mesh_queue (mesh_id, created_by);

-- What members have used of a window. Whoever sent in the window before is in it from its beginning, and has a
-- share that nobody else can take.
CREATE UNLOGGED TABLE mesh.rate_limit_member (
  mesh_id       TEXT COLLATE "C" NOT NULL,
  window_bucket BIGINT NOT NULL,
  member_id     TEXT COLLATE "C" NOT NULL,
  used          BIGINT NOT NULL,
  -- of a member that did not send in the window before: NULL
  share         BIGINT,
  PRIMARY KEY (mesh_id, window_bucket, member_id)
);

DELETE FROM mesh.rate_limit_idem;
DELETE FROM mesh.rate_limit_window;
-- What is left of all shares of a window.
ALTER TABLE mesh.rate_limit_window ADD COLUMN promised BIGINT NOT NULL;

DROP FUNCTION mesh.take_units(TEXT[], TEXT[], BIGINT[], BIGINT[]);

-- Takes units of several ids at once (mesh 6.3), by the rule of tidelog.mesh.limiter. The row of the window
-- is locked first, so all takers of a window follow one another, and each statement in here sees what the one before
-- it left. Answers the number of each id, and whether it is `known` (counted before), `taken` or `denied`.
CREATE FUNCTION mesh.take_shares(meshes TEXT[], members TEXT[], ids TEXT[], buckets BIGINT[], limits BIGINT[])
RETURNS TABLE (number BIGINT, verdict TEXT) LANGUAGE plpgsql AS $$
DECLARE
  asked RECORD;
  one RECORD;
  reserve BIGINT;
  each BIGINT;
  shared BIGINT;
  mine RECORD;
  free BIGINT;
  owed BIGINT;
  is_known BOOLEAN;
  spent BIGINT;
  sure BIGINT;
  early BIGINT;
  counted TEXT[];
  admitted TEXT[];
  got BIGINT;
BEGIN
  FOR asked IN
    SELECT g.mesh, g.bucket, max(g.most) AS most
    FROM unnest(meshes, buckets, limits) AS g (mesh, bucket, most) GROUP BY 1, 2 ORDER BY 1, 2
  LOOP
    reserve := CASE WHEN asked.most >= 100 THEN asked.most / 10 ELSE 0 END;
    each := reserve / 5;
    INSERT INTO mesh.rate_limit_window (mesh_id, window_bucket, used, promised)
    VALUES (asked.mesh, asked.bucket, 0, 0) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      DELETE FROM mesh.rate_limit_idem i WHERE i.mesh_id = asked.mesh AND i.window_bucket < asked.bucket - 1;
      DELETE FROM mesh.rate_limit_member m WHERE m.mesh_id = asked.mesh AND m.window_bucket < asked.bucket - 1;
      DELETE FROM mesh.rate_limit_window w
      WHERE w.mesh_id = asked.mesh AND w.window_bucket < asked.bucket - 1;
      SELECT (asked.most - reserve) / greatest(count(*), 1) INTO shared FROM mesh.rate_limit_member m
      WHERE m.mesh_id = asked.mesh AND m.window_bucket = asked.bucket - 1 AND m.used > 0;
      INSERT INTO mesh.rate_limit_member (mesh_id, window_bucket, member_id, used, share)
      SELECT m.mesh_id, asked.bucket, m.member_id, 0, shared FROM mesh.rate_limit_member m
      WHERE m.mesh_id = asked.mesh AND m.window_bucket = asked.bucket - 1 AND m.used > 0;
      GET DIAGNOSTICS got = ROW_COUNT;
      UPDATE mesh.rate_limit_window w SET promised = shared * got
      WHERE w.mesh_id = asked.mesh AND w.window_bucket = asked.bucket;
    END IF;
    SELECT asked.most - w.used, w.promised INTO free, owed FROM mesh.rate_limit_window w
    WHERE w.mesh_id = asked.mesh AND w.window_bucket = asked.bucket FOR UPDATE;
    counted := ARRAY(
      SELECT i.client_message_id FROM mesh.rate_limit_idem i
      WHERE i.mesh_id = asked.mesh AND i.window_bucket = asked.bucket AND i.client_message_id = ANY(ids));
    admitted := '{}';
    FOR one IN  -- the new ids of each member, whoever came first
      SELECT n.member, array_agg(n.id ORDER BY n.first) AS wanted, count(*) AS many FROM (
        SELECT DISTINCT ON (u.id) u.id, u.member, u.number AS first
        FROM unnest(meshes, members, ids, buckets) WITH ORDINALITY AS u (mesh, member, id, bucket, number)
        WHERE u.mesh = asked.mesh AND u.bucket = asked.bucket AND u.id <> ALL(counted)
        ORDER BY u.id, u.number
      ) AS n GROUP BY n.member ORDER BY min(n.first)
    LOOP
      SELECT m.used, m.share INTO mine FROM mesh.rate_limit_member m
      WHERE m.mesh_id = asked.mesh AND m.window_bucket = asked.bucket AND m.member_id = one.member;
      is_known := FOUND AND mine.share IS NOT NULL;
      spent := CASE WHEN FOUND THEN mine.used ELSE 0 END;
      sure := 0;
      early := 0;
      IF is_known THEN
        sure := least(one.many, greatest(mine.share - spent, 0), greatest(free, 0));
        owed := owed - sure;
      ELSE
        early := least(one.many, greatest(each - spent, 0), greatest(free - owed, 0));
      END IF;
      free := free - sure - early;
      got := sure + early + least(one.many - sure - early, greatest(free - owed - reserve, 0));
      free := free + sure + early - got;
      IF got > 0 THEN
        admitted := admitted || one.wanted[1:got];
        INSERT INTO mesh.rate_limit_member AS m (mesh_id, window_bucket, member_id, used)
        VALUES (asked.mesh, asked.bucket, one.member, got)
        ON CONFLICT (mesh_id, window_bucket, member_id) DO UPDATE SET used = m.used + excluded.used;
      END IF;
    END LOOP;
    INSERT INTO mesh.rate_limit_idem (mesh_id, client_message_id, window_bucket)
    SELECT asked.mesh, a, asked.bucket FROM unnest(admitted) AS a;
    UPDATE mesh.rate_limit_window w SET used = asked.most - free, promised = owed
    WHERE w.mesh_id = asked.mesh AND w.window_bucket = asked.bucket AND cardinality(admitted) > 0;
    RETURN QUERY
      SELECT n.number,
             CASE WHEN n.id = ANY(counted) THEN 'known'
                  WHEN n.id <> ALL(admitted) THEN 'denied'
                  WHEN n.number = min(n.number) OVER (PARTITION BY n.id) THEN 'taken'
                  ELSE 'known' END
      FROM unnest(meshes, ids, buckets) WITH ORDINALITY AS n (mesh, id, bucket, number)
      WHERE n.mesh = asked.mesh AND n.bucket = asked.bucket;
  END LOOP;
END $$;
