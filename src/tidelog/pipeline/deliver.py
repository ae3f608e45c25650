"""Changes for somebody else's server: batches in the order of the log, each with its key.

The end of a batch is noted before it is posted, and that it was taken afterwards. A process that
dies in between posts the same batch again, under the same key. So a receiver gets every change at
least once and in order, and one that keeps the position of the last change with what it made of it
applies each exactly once.
"""

import base64
import fcntl
import functools
import hashlib
import hmac
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from tidelog import __version__
from tidelog.base.errors import TidelogError
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.base.net import direct
from tidelog.pipeline.lake.notes import LOG_ID
from tidelog.pipeline.tables import BY_NAME

if TYPE_CHECKING:
    from tidelog.pipeline.lake.lake import Lake

BATCH_CHANGES = 500
BATCH_BYTES = 1024 * 1024
"""Of one post; a change that is larger goes alone."""

TIMEOUT_SECONDS = 30.0
ATTEMPTS = 8
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0
LOOK_SECONDS = 1.0
"""How often somebody who follows looks whether the table has grown."""

GONE = 410
"""The status by which a receiver says that it wants nothing more."""

_COLUMNS = tuple(column.name for column in BY_NAME["changes"].columns)


class DeliveryFailed(TidelogError):  # noqa: N818 - the failure is the noun
    """The receiver did not take a batch; what it took before is noted."""


class DeliveryReset(TidelogError):  # noqa: N818 - the failure is the noun
    """What was delivered is not in the log of the lake any more."""


class Progress(Struct, frozen=True):
    """How far one receiver is."""

    through: int = 0
    """Position of the last change that it took."""
    digest: str = ""
    """Digest of that entry: it stands for all before it."""
    pending: int = 0
    """Where the batch ends that it may have had already; 0 if there is none."""


class Delivered(Struct, frozen=True):
    """What was delivered."""

    through: int
    changes: int
    batches: int


class Receiver(Struct, frozen=True):
    """Who gets the changes."""

    url: str
    secret: str
    name: str
    """What its progress is noted under."""

    @classmethod
    def at(cls, url: str, secret: str, name: str | None = None) -> "Receiver":
        """Called by its address if it has no name."""
        return cls(url, secret, name or hashlib.sha256(url.encode()).hexdigest()[:16])


def deliver(
    lake: "Lake",
    receiver: Receiver,
    *,
    follow: bool = False,
    restart_at: int | None = None,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], None] = time.sleep,
    told: Callable[[Progress, int, str], None] = lambda _progress, _head, _trouble: None,
) -> Delivered:
    """Post what a receiver has not taken yet.

    Args:
        lake: Has the table `changes`.
        receiver: Who gets them.
        follow: Go on as the table grows; attempts are then not counted.
        restart_at: Begin after this position, whatever was delivered.
        attempts: How often a batch is posted before it is given up.
        pause: Waits so many seconds.
        told: After each batch and each failure: the progress, where the table ends, what failed.

    Raises:
        DeliveryFailed: the receiver does not take it.
        DeliveryReset: the log of the lake is not the one that was delivered.
        LakeError: there is no table `changes` yet, or another process delivers to this receiver.
    """
    lake.require_directory("deliver notes there what the receiver has")
    with _notes(lake, receiver.name) as notes:
        progress = notes.read()
        if restart_at is not None:
            progress = Progress(restart_at, _digest_at(lake, restart_at))
            notes.write(progress)
        begun, batches = progress.through, 0
        _require_same(lake, progress)
        while True:
            head = lake.through("changes")
            if progress.through >= head:
                if not follow:
                    return Delivered(progress.through, progress.through - begun, batches)
                pause(LOOK_SECONDS)
                continue
            _require_same(lake, progress)
            through = progress.pending or _end_of_batch(lake, progress.through, head)
            progress = msgspec.structs.replace(progress, pending=through)
            notes.write(progress)
            digest = _post_until_taken(
                lake,
                receiver,
                progress,
                attempts=0 if follow else attempts,
                pause=pause,
                told=functools.partial(told, progress, head),
            )
            reach(FaultPoint.CHANGES_POSTED)
            progress = Progress(through, digest)
            notes.write(progress)
            batches += 1
            told(progress, head, "")


# Batches.


def _rows(lake: "Lake", after: int, through: int) -> list[dict[str, Any]]:
    """Changes after a position, in order."""
    where = [("committed_id", ">", after), ("committed_id", "<=", through)]
    rows: list[dict[str, Any]] = (
        lake.arrow("changes", _COLUMNS, where).sort_by("committed_id").to_pylist()
    )
    return rows


def _end_of_batch(lake: "Lake", after: int, head: int) -> int:
    """Where the next batch ends: so that it is not too large."""
    size = 0
    for row in _rows(lake, after, min(after + BATCH_CHANGES, head)):
        size += len(row["change"] or "") + len(row["content"] or b"")
        if size > BATCH_BYTES and row["committed_id"] > after + 1:
            return int(row["committed_id"]) - 1
    return min(after + BATCH_CHANGES, head)


def _batch(lake: "Lake", after: int, through: int) -> tuple[bytes, str, str]:
    """A batch as it is posted, its key, and the digest of its last entry."""
    rows = _rows(lake, after, through)
    if len(rows) != through - after:
        raise DeliveryFailed(
            f"the table changes has {len(rows)} of the changes from {after + 1} to {through}. "
            "Build it: `tidelog pipeline build changes --full`; or begin later: --restart-at."
        )
    log_id = lake.property_of("log", LOG_ID) or ""
    body = {"log_id": log_id, "after": after, "through": through, "changes": _plain(rows)}
    return msgspec.json.encode(body), f"{log_id}:{after + 1}-{through}", rows[-1]["digest"]


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        row
        | {
            "change": None if row["change"] is None else Raw(row["change"].encode()),
            "content": None
            if row["content"] is None
            else base64.b64encode(row["content"]).decode(),
        }
        for row in rows
    ]


def _digest_at(lake: "Lake", position: int) -> str:
    if position == 0:
        return ""
    where = [("committed_id", "=", position)]
    found: list[str] = lake.arrow("changes", ["digest"], where)["digest"].to_pylist()
    return found[0] if found else ""


def _require_same(lake: "Lake", progress: Progress) -> None:
    """Make sure that what was delivered is the begin of what is there."""
    if progress.through and _digest_at(lake, progress.through) != progress.digest:
        raise DeliveryReset(
            f"changes up to {progress.through} were delivered, and the table changes, which is "
            f"complete through {lake.through('changes')}, does not have that entry any more: the "
            "log was rolled back, or is another one. Let the receiver undo what it has after the "
            "last position that both share, and name that position: --restart-at POSITION."
        )


# Posts.


def _post_until_taken(
    lake: "Lake",
    receiver: Receiver,
    progress: Progress,
    *,
    attempts: int,
    pause: Callable[[float], None],
    told: Callable[[str], None],
) -> str:
    """Post a batch until it is taken; returns the digest of its last entry."""
    made = 0
    while True:
        # Read anew for each attempt: what was forgotten meanwhile is not sent any more.
        body, key, digest = _batch(lake, progress.through, progress.pending)
        trouble = _post(receiver, body, key)
        if trouble is None:
            return digest
        made += 1
        if made == attempts:
            raise DeliveryFailed(
                f"{receiver.url} did not take changes {progress.through + 1} to "
                f"{progress.pending}: {trouble}. It was tried {made} times. What it took is noted; "
                "run it again when the receiver is well."
            )
        told(trouble)
        pause(min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(made - 1, 16)))


def _post(receiver: Receiver, body: bytes, key: str) -> str | None:
    """Post once; None if it was taken, else why it was not."""
    request = urllib.request.Request(  # noqa: S310 - the operator names the receiver
        receiver.url, data=body, headers=_headers(receiver.secret, body, key), method="POST"
    )
    try:
        with direct.opened(request, TIMEOUT_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        if error.code == GONE:
            raise DeliveryFailed(
                f"{receiver.url} wants no more changes: it returned {GONE}"
            ) from error
        return f"it returned {error.code}. {direct.advice(error)}".strip()
    except (OSError, ValueError) as error:
        return f"it does not answer ({error})"


def _headers(secret: str, body: bytes, key: str) -> dict[str, str]:
    """As those of the webhooks of a mesh (mesh 7.4), without the signature for older receivers."""
    timestamp = str(int(time.time()))
    return {
        "Content-Type": "application/json",
        "User-Agent": f"tidelog/{__version__}",
        "Idempotency-Key": key,
        "X-Tidelog-Timestamp": timestamp,
        "X-Tidelog-Signature-2": _signature(secret, timestamp.encode() + b"." + body),
    }


def _signature(secret: str, signed: bytes) -> str:
    return f"sha256={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


# What is noted.


class _Notes:
    """The progress of one receiver, on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Progress:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Progress)
        except FileNotFoundError:
            return Progress()
        except msgspec.MsgspecError as error:
            raise DeliveryFailed(
                f"{self._path} is damaged, so nobody knows what was delivered ({error}). Remove "
                "it, and name the position that the receiver has: --restart-at POSITION."
            ) from error

    def write(self, progress: Progress) -> None:
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(progress))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _notes(lake: "Lake", name: str) -> Iterator[_Notes]:
    """The notes of a receiver, for one process at a time."""
    lake.arrow("changes", ["committed_id"], [("committed_id", "=", 0)])  # there is such a table
    folder = lake.root / "_deliveries"
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DeliveryFailed(
                f"another process delivers to {name}. Wait for it, or stop it."
            ) from None
        yield _Notes(folder / f"{name}.json")
