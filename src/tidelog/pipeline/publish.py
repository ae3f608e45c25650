"""Giving the lake's snapshots to the running server, so that it starts cold partitions from them.

They go through the server's admin route and never into its store: the server checks that a state
belongs to its log and its model, and keeps the newest.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from tidelog.base.errors import TidelogError
from tidelog.base.net import direct
from tidelog.base.net.refusal import in_words, read_body
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.reading import forgotten_partitions

TIMEOUT_SECONDS = 60.0
"""For one snapshot. The server reads it, checks it and commits it; the largest has 10 MiB."""

_COLUMNS = ("partition", "committed_id", "digest", "model_version", "state")


class PublishError(TidelogError):
    """The server does not take snapshots: nothing more was sent."""


class Refused(Struct, frozen=True):
    """A snapshot that the server did not take."""

    partition: str
    reason: str


class Published(Struct, frozen=True):
    """What became of the snapshots of a lake."""

    stored: int
    newer: int
    """The server has a newer one."""
    forgotten: int
    """Not sent: an event of the partition is forgotten in the lake, so its state is not known."""
    refused: tuple[Refused, ...]


def publish_snapshots(
    lake: Lake,
    url: str,
    admin_token: str,
    *,
    progress: Callable[[str], None] = lambda _partition: None,
) -> Published:
    """Send every snapshot of the lake to a server.

    Args:
        lake: Has the table `snapshot`.
        url: URL of the server, such as `http://127.0.0.1:8080`.
        admin_token: The server's setting of that name.
        progress: Told each partition when it is done.

    Raises:
        PublishError: the server does not answer, does not know the token or serves no sync.
        LakeError: there are no snapshots yet.
    """
    forgotten = forgotten_partitions(lake)
    rows = lake.arrow("snapshot", _COLUMNS).sort_by("partition")
    stored = newer = held_back = 0
    refused = []
    for row in rows.to_pylist():
        partition = row["partition"]
        if partition in forgotten:
            held_back += 1
        else:
            state = msgspec.Raw(row["state"].encode())  # as the reducer wrote it, every digit
            reason = _put(url, admin_token, {**row, "state": state})
            if reason is None:
                stored += 1
            elif reason.get("code") == "newer_snapshot":
                newer += 1
            else:
                refused.append(Refused(partition, str(reason.get("error", reason))[:300]))
        progress(partition)
    return Published(stored, newer, held_back, tuple(refused))


def _put(url: str, admin_token: str, snapshot: dict[str, Any]) -> dict[str, Any] | None:
    """Send one; None if the server stored it, else what it said."""
    request = urllib.request.Request(  # noqa: S310 - the operator names the server
        f"{url.rstrip('/')}/sync/admin/snapshot",
        data=msgspec.json.encode(snapshot),
        headers={"authorization": f"Bearer {admin_token}"},
        method="PUT",
    )
    try:
        with direct.opened(request, TIMEOUT_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        text = read_body(error)
        if error.code in (400, 413):
            return _said(text)
        advice = {
            401: "Its admin_token is a different one: set TIDELOG_ADMIN_TOKEN to it.",
            404: "It serves no sync: set [sync] in its settings.",
        }.get(error.code, direct.advice(error) or "Try again.")
        said = in_words(text).rstrip(".")
        raise PublishError(f"{url} returned {error.code}: {said}. {advice}") from error
    except (OSError, ValueError) as error:
        raise PublishError(f"{url} does not answer ({error}). Is the server running?") from error


def _said(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {"error": text}
    return said if isinstance(said, dict) else {"error": text}
