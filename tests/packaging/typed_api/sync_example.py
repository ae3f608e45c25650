"""What a type checker knows of the sync clients; checked, never run."""

from pathlib import Path
from typing import Any, Literal, assert_type

from tidelog.client import (
    BlockingSyncClient,
    DraftInvalid,
    SavedDrafts,
    SyncClient,
    TreeNode,
)
from tidelog.client.sync.changes import Change
from tidelog.client.sync.rows import StoredEvent
from tidelog.sync.protocol.profiles import Model


async def offline_first(model: Model, store: Path) -> None:
    """Drafts, their outcome, the view and the changes."""

    async def token() -> str:
        return "fresh"

    client = SyncClient(
        "ws://127.0.0.1:8080/sync", client_id="ana", store=store, model=model, token=token
    )
    async with client:
        event = {"type": "treePush", "payload": {"target": "tasks", "value": {"id": "t"}}}
        try:
            row = await client.submit(partitions=["home"], event=event)
        except DraftInvalid as error:
            assert_type([fault.message for fault in error.faults], list[str])
            return
        assert_type(row, StoredEvent)
        assert_type(await client.wait(row.id), StoredEvent)
        assert_type(client.view("home"), dict[str, Any])
        assert_type(client.item("home", "tasks", "t"), dict[str, Any] | None)
        assert_type(client.children("home", "tasks", after="t", limit=10), list[str])
        assert_type(client.nodes("home", "tasks"), list[TreeNode])
        assert_type(client.pending(), list[StoredEvent])
        assert_type(client.state, Literal["disconnected", "connecting", "active"])
        assert_type(client.halted, str | None)
        assert_type(client.partitions, tuple[str, ...])
        async for change in client.changes():
            assert_type(change, Change)


async def again(client: SyncClient, damaged: Path) -> None:
    """What was written to a file that is damaged."""
    saved = SavedDrafts.read(damaged)
    assert_type(saved, SavedDrafts)
    for draft in saved.drafts:
        assert_type(await client.submit(**draft), StoredEvent)


def blocking(model: Model) -> None:
    """The same for programs without an event loop."""
    with BlockingSyncClient(None, client_id="ana", store=":memory:", model=model) as client:
        assert_type(client, BlockingSyncClient)
        assert_type(client.view("home"), dict[str, Any])
        for change in client.changes(timeout=1):
            assert_type(change, Change)
