"""Mistakes a type checker must find: each line with an `expect:` names the code it is refused with.

Not part of the repository's own type check; `test_public_types.py` holds mypy's answer against the
marks, so that a line without a complaint fails as much as a complaint without a mark.
"""

from pathlib import Path

import tidelog
from tidelog.client import (
    BlockingChannelPublisher,
    ChannelClient,
    ChannelPublisher,
    MeshClient,
    SyncClient,
)
from tidelog.sync.protocol.profiles import Model
from tidelog.testing.process import ServerProcess


async def channels(app: ChannelPublisher) -> int:
    """Arguments, results that may be missing, and values that cannot change."""
    await app.publish("room", "said")  # expect: call-arg
    await app.publish("room", "said", 1, message_id=7)  # expect: arg-type
    receipt = await app.publish("room", "said", 1)
    await app.append("room", receipt.message_serial, "x")  # expect: arg-type
    await app.update("room", "serial", clear=["nothing"])  # expect: list-item
    receipt.key = "other"  # expect: misc
    ChannelClient("ws://x", "key", append_mode="most")  # expect: arg-type
    ChannelClient("ws://x", "key", append_rollup_window=30)  # expect: arg-type
    return receipt.history_serial  # expect: return-value


def blocking(app: BlockingChannelPublisher) -> None:
    """It takes what the other one takes, and nothing is awaited."""
    app.publish("room", "said")  # expect: call-arg
    app.history("room", direction="sideways")  # expect: arg-type
    app.users(7)  # expect: arg-type
    app.publish("room", "said", 1).nothing  # noqa: B018 # expect: attr-defined


async def sync(model: Model) -> None:
    """Names that must be given, and a result that is awaited."""
    SyncClient("ws://x", store="x", model=model)  # expect: call-arg
    client = SyncClient(None, client_id="a", store="x", model=model)
    _ = client.submit(partitions=["p"], event={}).id  # expect: attr-defined
    await client.submit(["p"], {})  # expect: call-arg


async def mesh(client: MeshClient) -> None:
    """Priorities are three words."""
    await client.send("dm:ana", "x", priority="urgent")  # expect: arg-type


def others(folder: Path) -> None:
    """Forms of a table, and the harness."""
    tidelog.read("log", as_="csv")  # expect: call-overload
    _ = tidelog.absent  # expect: attr-defined
    ServerProcess(data_dir=str(folder))  # expect: arg-type
