"""Every check finds its violation, and only that: copies of a sound store are damaged by hand."""

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import asyncpg
import pytest

from support.log.log_writer import write_log
from support.pipeline import mixed_log
from support.pipeline.check_evidence import looked_at
from tidelog.base.errors import ConfigError
from tidelog.pipeline.checks import continuity, digest, orphans, retention
from tidelog.pipeline.checks.extent import Range
from tidelog.pipeline.checks.finding import Finding, Verdict
from tidelog.pipeline.checks.run import run_checks
from tidelog.pipeline.fill.derived_tables import build
from tidelog.pipeline.fill.ingest import catch_up
from tidelog.pipeline.fill.sync_model import model_in_use
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.search.index_build import update_index
from tidelog.pipeline.source.store_address import StoreAddress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from tidelog.pipeline.checks.evidence import Evidence

ENTRIES = 1500
HOUR_MS = 3_600_000


class Damage(NamedTuple):
    """Statements that break one rule at one place, which a query finds beforehand."""

    rule: str
    pick: str
    """Returns the values that stand for `{0}`, `{1}` ... below; the first row counts."""
    statements: tuple[str, ...]
    where: str
    """What the finding names."""


@pytest.fixture(scope="module")
def sound_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something of everything, purged and archived in part."""
    path = tmp_path_factory.mktemp("sound") / "tidelog.db"
    written = mixed_log.write(str(path), ENTRIES, 3)
    assert min(written.purged, written.archived, written.delivered) > 0
    return path


def damaged(
    store: Path, folder: Path, damages: tuple[Damage, ...]
) -> tuple[str, list[tuple[str, str]]]:
    """A damaged copy of a store, and where each damage is expected to be found."""
    copy = folder / "damaged.db"
    shutil.copy(store, copy)
    expected = []
    connection = sqlite3.connect(copy)
    for damage in damages:
        values = connection.execute(damage.pick).fetchone()
        assert values is not None, damage
        for statement in damage.statements:
            changed = connection.execute(statement.format(*values))
            assert changed.rowcount != 0, (damage.rule, statement)
        expected.append((damage.rule, damage.where.format(*values)))
    connection.commit()
    connection.close()
    return str(copy), expected


def later(taken: "Evidence", ranges: "Sequence[Range]") -> Verdict:
    """The orphan check an hour after the last entry, when no delivery is young any more.

    What it found is looked at a second time, and still there.
    """
    now_ms = taken.head.committed_at + HOUR_MS
    verdict = orphans.check(taken, ranges, now_ms)
    assert orphans.confirmed(taken, verdict, now_ms) == verdict
    return verdict


def found(verdict: Verdict) -> list[tuple[str, str]]:
    """Rule and place of every finding."""
    assert len(verdict.findings) == verdict.total
    return sorted((finding.rule, finding.where) for finding in verdict.findings)


# Continuity.

_LAST_OF_STREAM = (
    "SELECT max(committed_id), stream, max(stream_serial), max(stream_serial) - 1 FROM log "
    "WHERE stream LIKE 'channels/tide/room%' GROUP BY stream "
    "HAVING max(committed_id) < (SELECT committed_id FROM head) AND count(*) > 3 "
    "ORDER BY stream LIMIT 1 OFFSET "
)
"""Position, stream, serial and the serial before of the newest entry of a stream."""

CONTINUITY = (
    Damage(  # the last of its stream: the stream shows no gap, the log does
        "committed_id",
        _LAST_OF_STREAM + "0",
        ("DELETE FROM log WHERE committed_id = {0}",),
        "entry {0}",
    ),
    Damage(
        "stream_serial",
        _LAST_OF_STREAM + "1",
        ("UPDATE log SET stream_serial = stream_serial + 5 WHERE committed_id = {0}",),
        "{1} serial {2}",
    ),
    Damage(
        "stream_serial",
        _LAST_OF_STREAM + "2",
        (
            "DROP INDEX log_stream_serial",
            "UPDATE log SET stream_serial = stream_serial - 1 WHERE committed_id = {0}",
        ),
        "{1} serial {3}",
    ),
    Damage(
        "committed_id",
        "SELECT committed_id + 7 FROM head",
        (
            (
                "INSERT INTO log SELECT {0}, 'sync', 900000, surface, kind, entity, ref, actor, "
                "committed_at, body, data, body_digest, digest FROM log WHERE committed_id = 1"
            ),
        ),
        "entry {0}",
    ),
)

# Digest.

_PRUNED = "SELECT committed_id FROM log WHERE surface = 'channels' AND body IS NULL LIMIT 1 OFFSET "
_WHOLE = (
    "SELECT committed_id FROM log WHERE surface = 'channels' AND body IS NOT NULL "
    "ORDER BY committed_id LIMIT 1 OFFSET "
)

DIGEST = (
    *(
        Damage(
            "chain",
            _WHOLE + str(20 * number),
            (f"UPDATE log SET {change} WHERE committed_id = {{0}}",),
            "entry {0}",
        )
        for number, change in enumerate(
            (
                "kind = 'message.delete2'",
                "actor = actor || ' '",
                "entity = replace(entity, '0', '1')",
                "committed_at = committed_at + 1",
                "digest = zeroblob(16)",
            )
        )
    ),
    Damage(
        "content",
        _WHOLE + "150",
        (
            (
                "UPDATE log SET body = CAST(replace(CAST(body AS TEXT), '{{', '{{ ') AS BLOB) "
                "WHERE committed_id = {0}"
            ),
        ),
        "entry {0}",
    ),
    Damage(
        "content",
        "SELECT committed_id FROM log WHERE surface = 'mesh' AND data IS NOT NULL",
        ("UPDATE log SET data = CAST(data || x'00' AS BLOB) WHERE committed_id = {0}",),
        "entry {0}",
    ),
    Damage(  # the body of a pruned entry is vouched for by its digest
        "chain",
        _PRUNED + "3",
        ("UPDATE log SET body_digest = zeroblob(16) WHERE committed_id = {0}",),
        "entry {0}",
    ),
    Damage("head", "SELECT 1", ("UPDATE head SET digest = zeroblob(16)",), "head row"),
)

# Orphans.

_SEND = (
    "SELECT l.entity, d.key, d.scope, l.stream_serial, l.committed_id FROM log l "
    "JOIN dedupe d ON d.committed_id = l.committed_id "
    "WHERE l.surface = 'mesh' AND NOT EXISTS "
    "(SELECT 1 FROM mesh_mention_index m WHERE m.broker_message_id = l.entity) "
    "ORDER BY l.committed_id LIMIT 1 OFFSET "
)
"""A send without mentions: message, id, scope, place, position."""

_DELIVERED = "UPDATE mesh_delivery_queue SET status = 'delivered' WHERE broker_message_id = '{0}'"
_LATE_SEND = (
    "SELECT q.broker_message_id, min(q.recipient_pubkey) FROM mesh_delivery_queue q "
    "JOIN log l ON l.entity = q.broker_message_id WHERE l.kind = 'send.{kind}' "
    "GROUP BY q.broker_message_id ORDER BY max(q.history_id) DESC LIMIT 1 OFFSET {offset}"
)
"""A message of a kind that is not the newest, and one who gets it."""

_ITS_DELIVERY = "broker_message_id = '{0}' AND recipient_pubkey = '{1}'"
_VERSION = (
    "SELECT v.message, v.committed_id FROM channels_version v JOIN log l USING (committed_id) "
    "WHERE l.kind = 'message.append' ORDER BY v.committed_id LIMIT 1 OFFSET "
)
_EVENT = (
    "SELECT p.committed_id, p.partition, l.entity FROM sync_event_partitions p "
    "JOIN log l USING (committed_id) ORDER BY p.committed_id, p.partition LIMIT 1 OFFSET "
)

MESH_ORPHANS = (
    Damage(
        "mesh 1",
        _SEND + "0",
        ("UPDATE dedupe SET available = 0 WHERE key = '{1}' AND scope = '{2}'",),
        "id {1} in {2}",
    ),
    Damage(
        "mesh 2",
        _SEND + "1",
        (
            (
                "UPDATE dedupe SET outcome = CAST(replace(CAST(outcome AS TEXT), "
                "'\"history_id\":{3},', '\"history_id\":900000,') AS BLOB) "
                "WHERE key = '{1}' AND scope = '{2}'"
            ),
        ),
        "id {1} in {2}",
    ),
    Damage(
        "mesh 3",
        _SEND + "2",
        (_DELIVERED, "DELETE FROM dedupe WHERE key = '{1}' AND scope = '{2}'"),
        "message {0}",
    ),
    Damage(  # its id has ended, which may be; its content is gone without a trace
        "mesh 4",
        _SEND + "3",
        (
            _DELIVERED,
            "DELETE FROM dedupe WHERE key = '{1}' AND scope = '{2}'",
            "UPDATE log SET body = NULL, data = NULL WHERE committed_id = {4}",
        ),
        "message {0}",
    ),
    Damage(
        "mesh 5",
        "SELECT broker_message_id, recipient_pubkey FROM mesh_delivery_queue "
        "WHERE status = 'pending' ORDER BY 1, 2 LIMIT 1",
        (
            (
                "INSERT INTO mesh_delivery_queue (broker_message_id, recipient_pubkey, channel, "
                "endpoint_id, mesh_id, history_id, created_at, status, attempts, next_attempt_at) "
                "SELECT 'nothing', recipient_pubkey, channel, endpoint_id, mesh_id, history_id, "
                "created_at, status, attempts, next_attempt_at FROM mesh_delivery_queue "
                "WHERE broker_message_id = '{0}' AND recipient_pubkey = '{1}'"
            ),
        ),
        "delivery of nothing to {1}/push/",
    ),
    Damage(
        "mesh 6",
        "SELECT broker_message_id, mentioned_pubkey FROM mesh_mention_index ORDER BY 1, 2 LIMIT 1",
        (
            (
                "INSERT INTO mesh_mention_index (broker_message_id, mentioned_pubkey, mesh_id, "
                "history_id, created_at) SELECT 'nobody', mentioned_pubkey, mesh_id, history_id, "
                "created_at FROM mesh_mention_index "
                "WHERE broker_message_id = '{0}' AND mentioned_pubkey = '{1}'"
            ),
        ),
        "mention of {1} in nobody",
    ),
    Damage(  # the id and the deliveries know of the new place: only the gap shows
        "mesh 7",
        "SELECT l.committed_id, l.stream_serial, l.stream, l.stream_serial + 3 FROM log l "
        "WHERE l.surface = 'mesh' ORDER BY l.committed_id DESC LIMIT 1",
        (
            "UPDATE log SET stream_serial = {3} WHERE committed_id = {0}",
            (
                "UPDATE dedupe SET outcome = CAST(replace(CAST(outcome AS TEXT), "
                "'\"history_id\":{1},', '\"history_id\":{3},') AS BLOB) WHERE committed_id = {0}"
            ),
        ),
        "{2} serial {1}",
    ),
    *(
        Damage(
            "mesh 8",
            _LATE_SEND.format(kind=kind, offset=5),
            (f"DELETE FROM mesh_delivery_queue WHERE {_ITS_DELIVERY}",),
            "delivery of {0} to {1}/push/",
        )
        for kind in ("dm", "queue")
    ),
    Damage(
        "mesh 8",
        _LATE_SEND.format(kind="topic", offset=5),
        (f"DELETE FROM mesh_delivery_queue WHERE {_ITS_DELIVERY}",),
        "message {0}",
    ),
    Damage(  # as if two webhooks had been there
        "mesh 8",
        _LATE_SEND.format(kind="topic", offset=7),
        (
            (
                "UPDATE log SET body = CAST(replace(CAST(body AS TEXT), "
                "'\"recipients\":', '\"webhooks\":2,\"recipients\":') AS BLOB) WHERE entity = '{0}'"
            ),
        ),
        "message {0}",
    ),
    Damage(
        "mesh 9",
        "SELECT broker_message_id, mentioned_pubkey FROM mesh_mention_index "
        "ORDER BY history_id DESC, 2 LIMIT 1 OFFSET 4",
        (
            (
                "DELETE FROM mesh_mention_index "
                "WHERE broker_message_id = '{0}' AND mentioned_pubkey = '{1}'"
            ),
        ),
        "mention of {1} in {0}",
    ),
)

ORPHANS = (
    Damage(
        "channels version",
        _VERSION + "0",
        ("INSERT INTO channels_version VALUES ({0}, 900000)",),
        "version 900000 of message {0}",
    ),
    Damage(
        "channels entry",
        _VERSION + "1",
        ("DELETE FROM channels_version WHERE message = {0} AND committed_id = {1}",),
        "entry {1}",
    ),
    Damage(
        "channels message",
        "SELECT message FROM channels_message ORDER BY message DESC LIMIT 1",
        ("DELETE FROM channels_message WHERE message = {0}",),
        "message {0}",
    ),
    Damage(
        "channels receipt",
        "SELECT scope, key, committed_id FROM dedupe WHERE scope LIKE 'channels/%/append' "
        "ORDER BY committed_id LIMIT 1",
        ("DELETE FROM dedupe WHERE scope = '{0}' AND key = '{1}'",),
        "entry {2}",
    ),
    Damage(
        "sync partition",
        _EVENT + "3",
        ("INSERT INTO sync_event_partitions VALUES ('elsewhere', {0})",),
        "event {0} in elsewhere",
    ),
    Damage(
        "sync event",
        _EVENT + "20",
        ("DELETE FROM sync_event_partitions WHERE committed_id = {0} AND partition = '{1}'",),
        "event {0}",
    ),
    Damage(
        "sync archive",
        "SELECT 900001",
        ("INSERT INTO sync_events_archive VALUES ({0}, x'7b7d')",),
        "archived event {0}",
    ),
    Damage(
        "sync id",
        _EVENT + "40",
        ("DELETE FROM dedupe WHERE scope = 'sync' AND key = '{2}'",),
        "event {0}",
    ),
    Damage(
        "dedupe",
        _EVENT + "60",
        (
            (
                "INSERT INTO dedupe (scope, key, committed_id, fingerprint, owner, outcome, "
                "available, first_seen_at, expires_at) SELECT scope, 'stray', committed_id, "
                "fingerprint, owner, outcome, available, first_seen_at, expires_at FROM dedupe "
                "WHERE scope = 'sync' AND key = '{2}'"
            ),
        ),
        "key stray in sync",
    ),
)

# Retention.

_ARCHIVED = (
    "SELECT a.committed_id, p.partition FROM sync_events_archive a "
    "JOIN sync_event_partitions p USING (committed_id) ORDER BY a.committed_id DESC LIMIT 1"
)
_COVERED = (
    "SELECT l.committed_id, p.partition FROM log l "
    "JOIN sync_event_partitions p USING (committed_id) "
    "JOIN sync_snapshots s ON s.partition != p.partition AND s.committed_id >= l.committed_id "
    "JOIN sync_event_partitions o ON o.committed_id = l.committed_id AND o.partition = s.partition "
    "WHERE l.body IS NOT NULL AND (SELECT count(*) FROM sync_event_partitions n "
    "WHERE n.committed_id = l.committed_id) = 2 "
    "AND p.partition NOT IN (SELECT partition FROM sync_snapshots) ORDER BY 1 LIMIT 1"
)
"""An event in two partitions, of which one has a snapshot beyond it and the other none."""

RETENTION = (
    Damage(
        "pruned",
        _COVERED,
        (
            (
                "INSERT INTO sync_events_archive SELECT committed_id, body FROM log "
                "WHERE committed_id = {0}"
            ),
            "UPDATE log SET body = NULL WHERE committed_id = {0}",
        ),
        "event {0}",
    ),
    Damage(
        "prunable",
        _COVERED,
        ("DELETE FROM sync_event_partitions WHERE committed_id = {0} AND partition = '{1}'",),
        "event {0}",
    ),
    Damage(
        "archive",
        _ARCHIVED,
        ("DELETE FROM sync_events_archive WHERE committed_id = {0}",),
        "event {0}",
    ),
    Damage(
        "snapshot",
        "SELECT partition FROM sync_snapshots ORDER BY 1 LIMIT 1",
        ("UPDATE sync_snapshots SET state = CAST(state || x'20' AS BLOB) WHERE partition = '{0}'",),
        "snapshot of {0}",
    ),
    Damage(
        "snapshot",
        "SELECT partition FROM sync_snapshots ORDER BY 1 LIMIT 1 OFFSET 1",
        ("UPDATE sync_snapshots SET committed_id = 900000 WHERE partition = '{0}'",),
        "snapshot of {0}",
    ),
)

CASES = {
    "continuity": (continuity.check, CONTINUITY),
    "digest": (digest.check, DIGEST),
    "orphans": (later, (*MESH_ORPHANS, *ORPHANS)),
    "retention": (retention.check, RETENTION),
}


@pytest.mark.parametrize("name", CASES)
def test_each_damage_is_found_once_and_nothing_else(
    spark: "SparkSession",
    sound_store: Path,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every rule is broken at a place of its own, and the findings are exactly these places.

    Also if all but the first entry is looked at as a range, when rows are looked up by their keys;
    and of two ranges in the old and in the new, those are found that are in them.
    """
    monkeypatch.setattr("tidelog.pipeline.checks.finding.FIRST_FINDINGS", 100)
    check, damages = CASES[name]
    location, expected = damaged(sound_store, tmp_path, damages)
    taken = looked_at(spark, location, tmp_path)
    verdict = check(taken, taken.ranges)
    assert found(verdict) == sorted(expected), str(verdict)
    head = taken.head.committed_id
    almost = (Range(1, head),)
    by_key = looked_at(spark, location, tmp_path, *almost)
    assert not by_key.is_whole
    assert found(check(by_key, almost)) == sorted(expected)
    places = sorted(each.at for each in verdict.findings if each.at and each.at <= head)
    old = Range(places[0] - 1, min(places[0] + 99, head))
    parts = (old, Range(max(old.through, places[-1] - 99), head))
    some = found(check(looked_at(spark, location, tmp_path, *parts), parts))
    # An entry whose own digest was changed is nothing that the first one of a range could follow.
    edges = {("chain", f"entry {part.after + 1}") for part in parts}
    assert set(some) <= {*expected, *edges}
    inside = {
        (each.rule, each.where)
        for each in verdict.findings
        if any(part.after < (each.at or 0) <= part.through for part in parts)
    }
    assert inside
    assert inside <= set(some)


def test_every_rule_has_its_damage() -> None:
    """No rule is left out above."""
    assert {damage.rule for damage in (*MESH_ORPHANS, *ORPHANS)} == set(orphans.RULES)
    assert {damage.rule for damage in RETENTION} == set(retention.RULES)
    assert {damage.rule for damage in DIGEST} == {digest.CONTENT, digest.CHAIN, digest.HEAD}


def test_a_sound_store_has_no_findings(
    spark: "SparkSession", sound_store: Path, tmp_path: Path
) -> None:
    """All checks look at something and find nothing; their verdicts are in the lake."""
    lake = Lake(tmp_path / "lake")
    address = StoreAddress(str(sound_store))
    head = address.head()
    names = ["digest", "continuity", "orphans", "retention"]
    with lake.writing():
        verdicts = run_checks(names, spark, address, lake, now_ms=head.committed_at + HOUR_MS)
    assert [verdict.check for verdict in verdicts] == [
        "continuity",
        "orphans",
        "digest",
        "retention",
    ]
    for verdict in verdicts:
        assert verdict.is_sound, str(verdict)
        assert verdict.through == head.committed_id
        assert verdict.examined > 0
    kept = lake.arrow("verdict").to_pylist()
    assert sorted(row["check"] for row in kept) == sorted(names)
    assert all(row["findings"] == 0 and row["first"] == [] for row in kept)


def test_entries_that_come_while_it_looks_are_no_orphans(
    spark: "SparkSession", sound_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relations are read after the head, and a writer goes on; a row after the end is found."""
    path = tmp_path / "tidelog.db"
    shutil.copyfile(sound_store, path)
    address, look = StoreAddress(str(path)), StoreAddress.head
    head = address.head()
    early = head.committed_id - 400
    digest_there = address.entry_digest_at(early)
    assert digest_there is not None
    now_ms = head.committed_at + HOUR_MS
    for number, damage in enumerate(("", "INSERT INTO channels_version VALUES (1, 999999)")):
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(damage)
        heads = iter([head._replace(committed_id=early, digest=digest_there)])
        with monkeypatch.context() as patched:
            patched.setattr(
                StoreAddress, "head", lambda self, heads=heads: next(heads, None) or look(self)
            )
            lake = Lake(tmp_path / f"lake-{number}")
            [verdict] = run_checks(["orphans"], spark, address, lake, now_ms=now_ms)
        assert verdict.through == early
        places = {finding.where for finding in verdict.findings}
        assert places == ({"message 1", "version 999999 of message 1"} if damage else set())


@pytest.mark.parametrize("surface", ["none", *mixed_log.SHARES])
def test_a_log_that_lacks_something_is_sound(
    spark: "SparkSession", tmp_path: Path, surface: str
) -> None:
    """An empty log, and one of a single surface: most of what is looked at has no rows."""
    location, lake = str(tmp_path / "tidelog.db"), Lake(tmp_path / "lake")
    if surface == "none":
        write_log(location, [])
    else:
        mixed_log.write(location, 40, 3, surfaces=(surface,), with_retention=False)
    address = StoreAddress(location)
    assert catch_up(address, lake)
    build(spark, lake, address)
    update_index(spark, lake)
    now_ms, model = address.head().committed_at + HOUR_MS, model_in_use(address, None)
    verdicts = run_checks((), spark, address, lake, model=model, now_ms=now_ms)
    assert [str(verdict) for verdict in verdicts if not verdict.is_sound] == []
    assert [bool(verdict.examined) for verdict in verdicts] == [
        surface != "none" and (verdict.check != "retention" or surface == "sync")
        for verdict in verdicts
    ]


def test_unknown_checks_are_refused(spark: "SparkSession", tmp_path: Path) -> None:
    """A check that there is not is an error that names those there are."""
    with pytest.raises(ConfigError, match="no check nothing; there are continuity, orphans"):
        run_checks(["nothing"], spark, StoreAddress("x"), Lake(tmp_path))


_BY_CHECK = {
    "continuity": (CONTINUITY[3],),
    "orphans": (
        MESH_ORPHANS[0],
        *(d for d in MESH_ORPHANS if "DELETE FROM mesh" in d.statements[0]),
    ),
    "digest": (DIGEST[1],),
    "retention": (RETENTION[2],),
}
"""Damages for each check that no other check sees."""


async def _damage(url: str) -> dict[str, list[tuple[str, str]]]:
    connection = await asyncpg.connect(url)
    await connection.execute("SET search_path TO tidelog")
    expected: dict[str, list[tuple[str, str]]] = {name: [] for name in _BY_CHECK}
    for name, damages in _BY_CHECK.items():
        for damage in damages:
            values = await connection.fetchrow(damage.pick)
            assert values is not None, damage
            for statement in damage.statements:
                await connection.execute(statement.format(*values))
            expected[name].append((damage.rule, damage.where.format(*values)))
    await connection.close()
    return expected


def test_postgresql(spark: "SparkSession", postgresql_url: str, tmp_path: Path) -> None:
    """The same on the other engine: each check sees its damage and none of the others'."""
    mixed_log.write(postgresql_url, ENTRIES // 2, 3)
    expected = asyncio.run(_damage(postgresql_url))
    head = StoreAddress(postgresql_url).head().committed_id
    whole, almost = looked_at(spark, postgresql_url, tmp_path), Range(1, head)
    by_key = looked_at(spark, postgresql_url, tmp_path, almost)
    for name, findings in expected.items():
        check, _ = CASES[name]
        for taken in (whole, by_key):
            verdict = check(taken, taken.ranges)
            assert found(verdict) == sorted(findings), str(verdict)


def test_a_verdict_in_words() -> None:
    """It says what was examined, what was found and that there is more."""
    finding = Finding("rule", "entry 3", "is missing")
    verdict = Verdict("digest", 9, 8, (finding,), 3, ("nobody was asked",))
    assert str(verdict).splitlines() == [
        "digest: 3 findings; 8 rows examined up to 9",
        "  (nobody was asked)",
        "  rule: entry 3: is missing",
        "  ... and 2 more",
    ]
    assert str(Verdict("digest", 9, 8)) == "digest: sound; 8 rows examined up to 9"
    nothing = Verdict("agreement", 9, 0, uncompared=("no key is known",))
    assert not nothing.is_sound
    assert str(nothing).splitlines() == [
        "agreement: not compared; 0 rows examined up to 9",
        "  not compared: no key is known",
    ]
