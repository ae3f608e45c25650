"""Fetching: which partitions from where, one cycle at a time, and what waits (sync 17.5)."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from tidelog.client.sync.messages import BadMessage, Commit, Json, SyncPage
from tidelog.client.sync.store import ServerState, SyncStore
from tidelog.sync.protocol.partitions import normal_set

PAGE_EVENTS = 500
"""Events asked for per page."""

PAGE_BYTES = 1_048_576
"""Bytes of events asked for per page, and the most that a server gives."""

LEAST_PAGE_BYTES = 16_384
"""A line that breaks is asked for ever less, but not for less than this."""

MAX_STATE_BYTES = 16_777_216
"""What is held of a state that arrives in parts, and the most that a server gives."""

MISSES = 3
"""After this many partitions in a row without a state, the others are fetched together."""

MAX_BUFFERED = 10_000
"""Broadcasts held back during a cycle; if there are more, all are dropped and fetched instead."""

MAX_BUFFERED_BYTES = 64 * 1024**2
"""The same by size, as a broadcast may be a megabyte."""


class Incoming(Struct):
    """A state that arrives in parts; it outlives connections, so that a bad line makes progress."""

    partition: str
    committed_id: int
    parts: list[str]
    size: int
    next: int
    """The offset of the next missing part."""


class Cycle(Struct):
    """A cycle under way: one request is always in flight."""

    partitions: tuple[str, ...]
    since: int
    subscriptions: tuple[str, ...] | None
    """Installed with the first page; None leaves the server's set as it is."""
    limit: int
    max_bytes: int
    sync_to: int | None = None
    """The watermark; unknown until the first page."""
    stale: bool = False
    """The cursors it started from are void: its next answer is thrown away."""
    takes_state: bool = False
    """Whether it starts from 0 and accepts the state of its only partition (sync 10.1)."""
    incoming: Incoming | None = None
    """What has arrived of that state."""
    msg_id: str = ""
    sent_at: int = 0

    def request(self) -> Json:
        """Payload of the next `sync`."""
        payload: Json = {
            "partitions": list(self.partitions),
            "since_committed_id": self.since,
            "limit": self.limit,
            "max_bytes": self.max_bytes,
        }
        if self.subscriptions is not None and self.sync_to is None:
            payload["subscription_partitions"] = list(self.subscriptions)
        if self.takes_state:
            payload["accept_snapshot"] = True
        if self.incoming is not None:
            payload["snapshot_committed_id"] = self.incoming.committed_id
            payload["snapshot_from"] = self.incoming.next
        return payload


class Cycles:
    """What is to be fetched, what is being fetched, and the broadcasts held back meanwhile."""

    def __init__(self, store: SyncStore) -> None:
        self._store = store
        self.takes_states = False
        """Whether the server may have states, and the events lead to the same ones here."""
        self._misses = 0
        """How many partitions in a row the server had no state of."""
        self._incoming: Incoming | None = None
        self.plain: set[str] = set()
        """Partitions whose state could not be used: they are fetched as events."""
        self._page_events = PAGE_EVENTS
        """Events asked for per page where a request does not say."""
        self._page_bytes = PAGE_BYTES
        """Bytes asked for per page."""
        self._wanted: set[str] = set()
        self._since: int | None = None
        self._limit: int | None = None
        self._subscriptions: tuple[str, ...] | None = None
        self._buffer: list[Commit] = []
        self._buffer_bytes = 0
        self._overflowed = False
        self.current: Cycle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is fetched or waits for it."""
        return self.current is None and not self._wanted

    def want(
        self,
        partitions: Iterable[str],
        subscriptions: Sequence[str] | None = None,
        *,
        since: int | None = None,
        limit: int | None = None,
    ) -> None:
        """Fetch these when the current cycle is over, all with one set of subscriptions.

        What the current cycle covers is not asked for again while its first page is awaited.
        """
        names = normal_set(list(partitions))
        wished = None if subscriptions is None else normal_set(subscriptions)
        current = self.current
        if (
            current is not None
            and not current.stale
            and current.sync_to is None
            and set(names) <= set(current.partitions)
            and wished in (None, current.subscriptions)
            and since in (None, current.since)
        ):
            return
        self._wanted.update(names)
        self._since, self._limit = since, limit
        self._subscriptions = wished if wished is not None else self._subscriptions

    def start(self) -> Cycle | None:
        """Begin the next cycle; None while one is under way or nothing is wanted.

        Partitions that were fetched before and those that never were go separately: from the
        smallest cursor, and from 0 (sync D58). Of the latter each has a cycle of its own while the
        server has states of them.
        """
        if self.current is not None or not self._wanted:
            return None
        cursors = self._store.cursors(self._wanted)
        known = [partition for partition, cursor in cursors.items() if cursor]
        chosen = known or self._new(cursors)
        since = min(cursors[partition] for partition in chosen)
        if self._since is not None:
            since = min(since, self._since)
        self._wanted.difference_update(chosen)
        limit = self._page_events if self._limit is None else self._limit
        cycle = self.current = Cycle(
            normal_set(chosen), since, self._subscriptions, limit, self._page_bytes
        )
        cycle.takes_state = not known and self._takes_state(chosen)
        incoming = self._incoming
        if cycle.takes_state and incoming is not None and incoming.partition in chosen:
            cycle.incoming = incoming
        self._since = self._limit = self._subscriptions = None
        return self.current

    def _new(self, partitions: Iterable[str]) -> list[str]:
        """Which of the partitions that were never fetched come next."""
        names = sorted(partitions)
        if self._misses < MISSES:
            for name in names:
                if self._takes_state([name]):
                    return [name]
        return names

    def _takes_state(self, partitions: Sequence[str]) -> bool:
        return self.takes_states and len(partitions) == 1 and partitions[0] not in self.plain

    def collect(self, page: SyncPage) -> ServerState | None:
        """Take a part of a state; all of it once it is complete."""
        cycle = self.current
        if cycle is None or not cycle.takes_state or page.snapshot is None:
            raise BadMessage("a snapshot that was not asked for")
        if page.events:
            raise BadMessage("a snapshot and events in one sync_response")
        cycle.sync_to = page.sync_to_committed_id
        incoming = cycle.incoming
        if incoming is None or incoming.committed_id != page.snapshot_committed_id:
            incoming = Incoming(cycle.partitions[0], page.snapshot_committed_id, [], 0, 0)
        incoming.parts.append(page.snapshot)
        incoming.size += len(page.snapshot)
        self._misses = 0
        if page.snapshot_next is None:
            self._incoming = cycle.incoming = None
            cycle.takes_state = False
            if page.next_since_committed_id < incoming.committed_id:
                raise BadMessage("a snapshot that is ahead of its page")
            return ServerState(incoming.partition, incoming.committed_id, "".join(incoming.parts))
        if page.snapshot_next <= incoming.next:
            raise BadMessage("sync_response announces more of a snapshot but does not advance")
        incoming.next = page.snapshot_next
        self._incoming = cycle.incoming = incoming
        if incoming.size > MAX_STATE_BYTES:
            self.give_up_states(cycle.partitions)
        return None

    def give_up_states(self, partitions: Iterable[str]) -> None:
        """Fetch these as events: their states cannot be used."""
        self.plain.update(partitions)
        self._incoming = None
        cycle = self.current
        if cycle is not None and not self.plain.isdisjoint(cycle.partitions):
            cycle.takes_state, cycle.incoming = False, None

    def try_states(self) -> None:
        """The server has other states now: those that could not be used before may be usable."""
        self.plain.clear()
        self._incoming = None

    def is_covering(self, partition: str) -> bool:
        """Whether a cycle over the partition is under way."""
        return self.current is not None and partition in self.current.partitions

    def hold(self, commit: Commit, size: int) -> bool:
        """Whether a broadcast must wait for the end of the cycle: it lies after the watermark."""
        cycle = self.current
        if cycle is None or (cycle.sync_to is not None and commit.committed_id <= cycle.sync_to):
            return False
        if self._overflowed:
            return True
        self._buffer.append(commit)
        self._buffer_bytes += size
        if len(self._buffer) > MAX_BUFFERED or self._buffer_bytes > MAX_BUFFERED_BYTES:
            self.release()
            self._overflowed = True
        return True

    def advance(self, page: SyncPage) -> bool:
        """A page was stored; returns whether the cycle goes on."""
        cycle = self.current
        if cycle is None:
            return False
        cycle.sync_to = page.sync_to_committed_id
        cycle.since = page.next_since_committed_id
        if cycle.takes_state:  # and the server sent none
            self._misses += 1
            self._incoming = cycle.incoming = None
            cycle.takes_state = False
        if page.has_more and not cycle.stale:
            return True
        self.current = None
        self._page_events, self._page_bytes = PAGE_EVENTS, PAGE_BYTES
        return False

    def overflowed(self) -> bool:
        """Whether broadcasts were thrown away since the last call."""
        overflowed, self._overflowed = self._overflowed, False
        return overflowed

    def release(self) -> list[Commit]:
        """The broadcasts held back, in the order of the log."""
        held, self._buffer, self._buffer_bytes = self._buffer, [], 0
        held.sort(key=lambda commit: commit.committed_id)
        return held

    def void(self, partitions: Iterable[str]) -> None:
        """Cursors of these are gone: a cycle over any of them stores no other page and starts anew.

        Its answer is still awaited, because requests are never pipelined.
        """
        current = self.current
        if current is not None and not set(partitions).isdisjoint(current.partitions):
            current.stale = True
            self._wanted.update(current.partitions)
            if self._subscriptions is None:
                self._subscriptions = current.subscriptions

    def abandon(self, denied: Iterable[str] = ()) -> None:
        """End the cycle without its answer, and do not fetch what was denied."""
        self.current = None
        self._wanted.difference_update(denied)

    def dropped(self) -> None:
        """The connection is gone, and with it the cycle and all that waited for it.

        If a page was on its way, it may have been too large for the line: until a cycle is complete
        each page is requested at half the size of the one before.
        """
        if self.current is not None and self.current.sent_at:
            self._page_events = max(1, self._page_events // 2)
            self._page_bytes = max(LEAST_PAGE_BYTES, self._page_bytes // 2)
        self.current = None
        self._misses = 0
        self._wanted.clear()
        self._since = self._limit = self._subscriptions = None
        self.release()
        self._overflowed = False
