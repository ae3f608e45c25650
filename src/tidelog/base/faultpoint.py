"""Named points where a test can make the real process die or an operation fail.

Armed only by the environment variable `TIDELOG_TEST_FAULTS`, read once at import. Without it
`reach` is a comparison with an empty mapping, and nothing a client sends can arm a point.

The variable is a comma-separated list of `point=effect` or `point=effect@n` (the n-th pass,
counted from 1; without it the first). Effects: `kill` (SIGKILL to the own process), `kill-all` (to
its supervisor, and so to all processes of a server), `stop` (SIGSTOP to the own: it stands still
until a test continues it), `enospc`, `eio` (an `OSError` with that number), `cut` (a
`ConnectionResetError`) and `slow` (a pause at every pass, as of a disk that takes long).
"""

import errno
import os
import signal
import time
from enum import StrEnum

VARIABLE = "TIDELOG_TEST_FAULTS"


class FaultPoint(StrEnum):
    """Every point: from a decision to its acknowledgement, link, broker, daemon, lake and file."""

    DECIDED = "committer.decided"
    """Decisions made, nothing written."""
    ENTRIES_WRITTEN = "K3.message"
    """Entries of the batch written. PostgreSQL writes a batch in one statement, which also commits
    unless others must follow: then this and the points up to `WRITTEN` lie just before it."""
    KEYS_WRITTEN = "K3.dedupe"
    """Dedupe rows of the batch written."""
    DELIVERIES_WRITTEN = "K3.delivery"
    """Delivery rows of sends written."""
    MENTIONS_WRITTEN = "K3.mention"
    """Mention rows of sends written."""
    HISTORY_WRITTEN = "K3.history"
    """A batch with entries is written to its last row; on SQLite that is the head, which says where
    the log ends."""
    WRITTEN = "store.written"
    """All rows of the batch written, COMMIT not yet issued."""
    COMMITTING = "store.committing"
    """PostgreSQL: COMMIT or the one statement sent, no answer read. SQLite: about to COMMIT."""
    COMMITTED = "store.committed"
    """COMMIT durable; nothing outside the store knows."""
    HANDING_OVER = "committer.handing_over"
    """Before a request's answer is handed over; earlier requests of the batch have theirs."""
    FLUSHING = "fanout.flushing"
    """Before the bytes of answers and deliveries are given to the sockets."""

    LINK_SENDING = "link.sending"
    """An owner or a front has frames for the other, and nothing of them is written."""
    LINK_RECEIVED = "link.received"
    """Frames have come to an owner or a front, and nothing of them is taken."""

    BROKER_PARSED = "K1"
    """A send was read and is sound; the rate limiter has not counted it."""
    BROKER_COUNTED = "K2"
    """The rate limiter has counted a send; its transaction is not open."""
    BROKER_ACCEPTED = "K4"
    """A send is committed; its answer is not written."""
    BROKER_CLAIMED = "K5"
    """Deliveries are leased to a receiver; nothing of them is pushed."""
    BROKER_ACKNOWLEDGED = "K6"
    """An acknowledgement was read; its delivery is not marked."""

    DAEMON_ACCEPTING = "D1"
    """A send was read from the IPC; its row is written and not committed."""
    DAEMON_ACCEPTED = "D2"
    """The row of a send is committed, its caller has no answer."""
    DAEMON_CLAIMED = "D3"
    """A row is `inflight`, nothing of it has been sent."""
    DAEMON_SENT = "D4"
    """An attempt was sent, its answer is not read."""
    DAEMON_ANSWERED = "D5"
    """The broker's answer was read, its row does not say so."""
    DAEMON_REQUEUEING = "D6"
    """The old row of a requeue is changed, the transaction is open."""
    DAEMON_RECOVERED = "D7"
    """At start: rows left `inflight` are `pending` again, the IPC is closed."""
    RECEIVING = "R1"
    """A delivery was read, its inbox row is not committed."""
    RECEIVED = "R2"
    """The inbox row is committed, the broker has no acknowledgement."""
    PUBLISHING = "R3"
    """The inbox row is committed, no event says so."""

    LAKE_WRITTEN = "P1"
    """Spark has written the files of a table's next version; the table does not name them."""
    LAKE_COMMITTED = "P2"
    """A table's next version is committed; Spark's checkpoint does not say so."""
    INDEX_WRITTEN = "P3"
    """The shards of the next search index are written; its manifest does not name them."""
    INDEX_PUBLISHED = "P4"
    """The manifest names the next search index; the files of the one before are still there."""

    CHANGES_POSTED = "P5"
    """A receiver has taken a batch of changes; it is not noted."""

    COMPACTING = "S1"
    """The copy of an SQLite file is written and sound; the file has not been replaced by it."""
    COMPACTED = "S2"
    """The file has been replaced; nobody has been told."""


COMMIT_PATH = (
    FaultPoint.DECIDED,
    FaultPoint.WRITTEN,
    FaultPoint.COMMITTING,
    FaultPoint.COMMITTED,
    FaultPoint.HANDING_OVER,
    FaultPoint.FLUSHING,
)
"""What every durable write of any surface passes, in this order."""

SLOW_SECONDS = 0.005

_EFFECTS = ("kill", "kill-all", "stop", "enospc", "eio", "cut", "slow")


class _Armed:
    __slots__ = ("effect", "left")

    def __init__(self, effect: str, left: int) -> None:
        self.effect = effect
        self.left = left


def _parse(text: str) -> dict[str, _Armed]:
    armed: dict[str, _Armed] = {}
    for part in filter(None, text.split(",")):
        point, _, effect = part.partition("=")
        effect, _, nth = effect.partition("@")
        if effect not in _EFFECTS:
            raise ValueError(f"{VARIABLE}: unknown effect {effect!r} in {part!r}; use {_EFFECTS}")
        armed[FaultPoint(point)] = _Armed(effect, int(nth or 1))
    return armed


_armed = _parse(os.environ.get(VARIABLE, ""))


def reach(point: FaultPoint) -> None:
    """Mark that execution passes `point`; does nothing unless a test armed it."""
    if _armed and point in _armed:
        _pass(point)


def _pass(point: FaultPoint) -> None:
    armed = _armed[point]
    if armed.effect == "slow":
        time.sleep(SLOW_SECONDS)
        return
    armed.left -= 1
    if armed.left == 0:
        _fire(armed.effect)


def _fire(effect: str) -> None:
    match effect:
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "kill-all":
            # It must not end before the others: they would see that, and say something. So it
            # stands still until its supervisor's death kills all of them (`parent_death`).
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGSTOP)
        case "enospc":
            raise OSError(errno.ENOSPC, "injected: no space left on device")
        case "eio":
            raise OSError(errno.EIO, "injected: input/output error")
        case "cut":
            raise ConnectionResetError(errno.ECONNRESET, "injected: connection reset")
        case _:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("SIGKILL returned")
