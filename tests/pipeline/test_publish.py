"""Snapshots of the lake given to a server: it starts from them, and is never given wrong ones."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.pipeline.table_rows import table_rows
from support.sync.peer import ADMIN_TOKEN, TREE, SyncNode, connected, outcome, push, sync_server
from tidelog.base.settings.limits import Limits
from tidelog.pipeline.fill.derived_tables import build
from tidelog.pipeline.fill.ingest import ingest
from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.publish import Published, PublishError, Refused, publish_snapshots
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.sync.front.files import read_model

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(tmp_path / "lake")


async def publish(lake: Lake, node: SyncNode, token: str = ADMIN_TOKEN) -> Published:
    """Publish to a server in this process, which has to answer meanwhile."""
    return await asyncio.to_thread(publish_snapshots, lake, node.server.url, token)


async def snapshot_row(node: SyncNode, partition: str, at: int, **changed: Any) -> dict[str, Any]:
    """The state of a partition as a row of the table `snapshot`, at the newest position."""
    pinned = await node.owner.states.pin([partition])
    state = pinned[partition].tree.export()
    node.owner.states.unpin(pinned)
    [entry] = await node.store.entries(at - 1, limit=1)
    row = {
        "partition": partition,
        "committed_id": at,
        "digest": entry.digest.hex(),
        "model_version": node.service.model_version,
        "events": at,
        "state": json.dumps(state),
    }
    return row | changed


def make_snapshots(spark: "SparkSession", lake: Lake, node: SyncNode) -> None:
    """What `tidelog pipeline run` does for snapshots: ingest the log, build the table."""
    address = StoreAddress(node.server.settings.store_location)
    ingest(spark, address, lake)
    build(spark, lake, address, ["snapshot"], model=read_model(node.settings.sync))


async def test_a_server_starts_from_a_published_snapshot(
    spark: "SparkSession", lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made by Spark from the server's log; after a restart only events behind it are read.

    The server knows the nodes in it: it refuses one of the same id, and takes a child of one.
    """
    async with sync_server(tmp_path / "data") as node:
        async with connected(node.ws_url, "t", TREE) as peer:
            await peer.submit(*(push(str(n), f"n{n}") for n in range(1, 31)))
        await asyncio.to_thread(make_snapshots, spark, lake, node)
        assert await publish(lake, node) == Published(1, 0, 0, ())
        assert await publish(lake, node) == Published(1, 0, 0, ()), "again is no error"
        async with connected(node.ws_url, "t", TREE) as peer:
            await peer.submit(push("31", "n31", parent="n30"))
    async with sync_server(tmp_path / "data") as node:
        read = 0
        rows_within = node.store.rows_within

        async def counted(query: str, positions: Any, *, most_bytes: int) -> Any:
            nonlocal read
            found = await rows_within(query, positions, most_bytes=most_bytes)
            read += len(found)
            return found

        monkeypatch.setattr(node.store, "rows_within", counted)
        async with connected(node.ws_url, "t", TREE) as peer:
            results = await peer.submit(push("32", "n7"), push("33", "n33", parent="n31"))
        assert outcome(results) == ["validation_failed event.payload.value.id", "committed"]
        assert read == 1, "31 events were committed, 30 are in the snapshot"


async def test_what_the_server_does_not_take_is_told(
    spark: "SparkSession", lake: Lake, tmp_path: Path
) -> None:
    """Newer ones are skipped, wrong ones are named, those of forgotten events are not even sent."""
    async with sync_server(tmp_path / "data", limits=Limits(max_body_bytes=4000)) as node:
        with pytest.raises(LakeError, match="tidelog pipeline run"):
            await publish(lake, node)
        async with connected(node.ws_url, "t", TREE) as peer:
            for partition in ("good", "large", "other", "secret", "stale"):
                await peer.submit(push(partition, "x", partition))
        stale = await snapshot_row(node, "stale", 5)
        lake.append(
            "snapshot",
            table_rows(
                spark,
                "snapshot",
                await snapshot_row(node, "good", 5),
                await snapshot_row(node, "large", 5, state=json.dumps({"t": "x" * 5000})),
                await snapshot_row(node, "other", 5, digest="00" * 16),
                await snapshot_row(node, "secret", 5),
                stale,
            ).coalesce(1),
            5,
        )
        forgotten = {"stream": "sync", "entity": "secret", "partitions": ["secret"]}
        lake.append("forgotten", table_rows(spark, "forgotten", forgotten), 5)
        async with connected(node.ws_url, "t", TREE) as peer:
            await peer.submit(push("again", "y", "stale"))
        newer = await snapshot_row(node, "stale", 6)
        other = Lake(tmp_path / "newer")
        other.append("snapshot", table_rows(spark, "snapshot", newer), 6)
        assert (await publish(other, node)).stored == 1
        answer = await publish(lake, node)
        assert (answer.stored, answer.newer, answer.forgotten) == (1, 1, 1)
        assert answer.refused == (
            Refused("large", "the body is larger than 4000 bytes (setting limits.max_body_bytes)"),
            Refused(
                "other",
                "digest is not that of the entry at committed_id; is the snapshot of another log?",
            ),
        )
        assert await node.store.rows("sync_snapshot", ("secret",)) == ()
        with pytest.raises(PublishError, match="TIDELOG_ADMIN_TOKEN"):
            await publish(other, node, "another token")
        url = node.server.url
    with pytest.raises(PublishError, match="Is the server running"):
        publish_snapshots(other, url, ADMIN_TOKEN)
