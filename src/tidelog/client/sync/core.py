"""The sync client's protocol without sockets, sleep or clock: messages in, actions out (sync 17).

The owner feeds it what arrives, sends what `actions` gives it, and calls `tick` at `wake_at`. All
state that matters is in the store; what is here can be lost at any moment.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from tidelog.base.errors import StoreDamaged, StoreError
from tidelog.client.sync.actions import Action, Actions
from tidelog.client.sync.changes import Listener, Listeners
from tidelog.client.sync.drafts import Drafts
from tidelog.client.sync.fetching import Cycle, Cycles
from tidelog.client.sync.folds import Fold, Reduce, folds_for, unchanged
from tidelog.client.sync.messages import (
    BadMessage,
    Commit,
    Connected,
    Decision,
    Json,
    Limits,
    Results,
    ServerError,
    SyncPage,
    VersionChanged,
    parse,
)
from tidelog.client.sync.rows import StoredEvent
from tidelog.client.sync.store import Applied, Arrival, IntegrityViolation, SyncStore
from tidelog.client.sync.submit_queue import SubmitQueue
from tidelog.client.sync.views import MAX_CACHED_BYTES, Views
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.partitions import normal_set
from tidelog.sync.protocol.profiles import COMPATIBILITY, Model

SNAPSHOT_EVERY = 1000
"""Committed events of a partition after which its state is saved."""

CHECK_EVENTS = 2000
"""Committed events applied in one go to states that nobody has asked for; messages and heartbeats
come in between."""

REPLY_TIMEOUT_MS = 60_000
"""After this long without an answer to a request, the connection counts as dead."""

RETRY_AFTER_MS = 1000
"""How long to wait after `rate_limited` where the server does not say."""

MAX_RETRY_AFTER_MS = 300_000

TREE_POLICIES = (None, "strict")
"""With any other it is unknown what the server accepts."""

FINAL = frozenset({"auth_failed", "profile_unsupported", "protocol_version_unsupported"})
"""Errors after which the same connect would fail again."""

ConnectionState = Literal["disconnected", "connecting", "active"]

T = TypeVar("T")


class SyncCore:
    """One client: its connection's state machine over its store."""

    def __init__(
        self,
        store: SyncStore,
        model: Model,
        *,
        now: Callable[[], int],
        uuid: Callable[[], str],
        profile: str = COMPATIBILITY,
        partitions: Sequence[str] = (),
        reduce: Reduce = unchanged,
        max_cached_bytes: int = MAX_CACHED_BYTES,
        submits_itself: bool = True,
    ) -> None:
        """`submits_itself=False` sends drafts only on `flush`, for tests."""
        self.store = store
        self.profile = profile
        self.state: ConnectionState = "disconnected"
        self.halted: str | None = None
        """The error after which connecting again would be pointless."""
        self.limits = Limits()
        self._reduce = reduce
        self._now = now
        self._submits_itself = submits_itself
        self._partitions = normal_set(partitions)
        self._denied: set[str] = set()
        self._refusals: dict[str, str] = {}
        """Why partitions were not fetched on this connection."""
        self._views = Views(store, folds_for(profile, model, reduce), max_cached_bytes)
        self._drafts = Drafts(store, self._views, model, profile, uuid)
        self._cycles = Cycles(store)
        self._queue = SubmitQueue(store)
        self._actions = Actions(now, uuid)
        self._listeners = Listeners()
        self._settled: set[str] = set()
        """Partitions that are complete and stay so: fetched to the end, and subscribed to."""
        self._due: dict[str, None] = {}
        """Settled partitions whose states are to be checked, in the order they changed."""
        self._diverged: set[str] = set()
        """Partitions that fetching anew did not repair; it is tried once."""
        self._unreadable: set[str] = set()
        """Damaged drafts that were reported."""
        self._synced = False
        self._recovering = False
        self._saves_all = False
        self._flushing = False
        self._held_until: int | None = None
        self._heartbeat_id = ""
        self._asked_at = 0
        self._progressed_at = 0
        """When part of an answer was last received."""

    # What the owner does

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions in use: fetched, subscribed to, and not denied."""
        return tuple(name for name in self._partitions if name not in self._denied)

    @property
    def is_synced(self) -> bool:
        """Whether every partition in use is complete as of this connection."""
        return self._synced and self._cycles.is_idle

    def unfetched(self, partitions: Sequence[str] | None = None) -> dict[str, str]:
        """Which of these, or of all followed, a finished sync left incomplete, and why."""
        names = self._partitions if partitions is None else partitions
        return {
            name: self._refusals.get(name, "it was not fetched")
            for name in names
            if name not in self._settled
        }

    @property
    def wake_at(self) -> int | None:
        """When `tick` has something to do."""
        times = [since + REPLY_TIMEOUT_MS for since in self._awaited()]
        if self._held_until is not None:
            times.append(self._held_until)
        if self._due and self._cycles.is_idle:
            times.append(self._now())
        return min(times, default=None)

    def on(self, name: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every change of that name; returns how to stop that."""
        return self._listeners.on(name, listener)

    def tell(self) -> None:
        """Tell the listeners what has changed, and what was found wrong on the way."""
        for (partition, code), skipped in self._views.skipped.items():
            kind = "committed_id" if isinstance(skipped.key, int) else "id"
            more = f", and {skipped.number - 1} more" if skipped.number > 1 else ""
            self._listeners.fail(
                code,
                f"{partition}: {skipped.key} was skipped: {skipped.message}{more}",
                {"partition": partition, kind: skipped.key, "count": skipped.number},
            )
        self._views.skipped.clear()
        for event_id in self.store.unreadable - self._unreadable:
            self._unreadable.add(event_id)
            self._listeners.fail(
                "store_damaged", f"draft {event_id} cannot be read and is not submitted"
            )
        for note in self.store.notes:
            self._listeners.fail(note.code, note.message)
        self.store.notes.clear()
        self._listeners.tell()

    def actions(self) -> list[Action]:
        """What is to be done, in order; asked for after every call."""
        return self._actions.take()

    def connect(self, token: str) -> None:
        """A transport is open: ask for a session."""
        self.halted = None
        self._become("connecting")
        payload = {
            "token": token,
            "client_id": self.store.client_id,
            "last_committed_id": self.last_committed_id(),
            "supported_profiles": [self.profile],
            "required_profile": self.profile,
        }
        incarnation = self.store.incarnation
        if incarnation is not None:
            payload["incarnation"] = incarnation
        self._actions.send("connect", payload)
        self._asked_at = self._now()
        self.tell()

    def assume_connected(self) -> None:
        """Start with a session that is open and complete, for tests without a handshake."""
        self._settled = set(self.partitions)
        self._synced = True
        self._become("active")
        self.tell()

    def disconnected(self) -> None:
        """The connection is gone; whether what was in flight happened is unknown."""
        self._queue.dropped()
        self._cycles.dropped()
        self._actions.dropped()
        self._settled.clear()
        self._due.clear()
        self._denied.clear()
        self._refusals.clear()
        self._synced = self._flushing = self._recovering = False
        self._held_until = None
        self._become("disconnected")
        self.tell()

    def stop(self, reason: str = "client_shutdown") -> None:
        """End the session in order."""
        if self.state == "active":
            self._actions.send("disconnect", {"reason": reason})
        self._actions.close(reason)

    def heartbeat(self) -> None:
        """Show the server that this end is alive."""
        self._heartbeat_id = self._actions.send("heartbeat", {})

    def tick(self) -> None:
        """Time has passed: go on after a pause, or give up on an answer that does not come."""
        now = self._now()
        if any(since + REPLY_TIMEOUT_MS <= now for since in self._awaited()):
            self._listeners.fail("timeout", f"no answer within {REPLY_TIMEOUT_MS} ms")
            self._actions.close("timeout")
        elif self._held_until is not None and self._held_until <= now:
            self._held_until = None
            cycle = self._cycles.current
            if cycle is not None and cycle.sent_at == 0:
                self._request(cycle)
            self._go()
        elif self._due:
            self._check()
            self._end_checks()
            self._go()
        self.tell()

    def progressed(self) -> None:
        """Part of a message has arrived: an answer that takes long is on its way."""
        self._progressed_at = self._now()

    def sync(
        self,
        partitions: Sequence[str] | None = None,
        subscription_partitions: Sequence[str] | None = None,
        since_committed_id: int | None = None,
        limit: int | None = None,
    ) -> None:
        """Fetch partitions; without names all in use. Subscriptions, if given, replace the set."""
        if partitions is None:
            partitions = self.partitions
        kept = self._partitions if subscription_partitions is None else subscription_partitions
        self._partitions = normal_set([*kept, *partitions])
        if self.state == "active" and partitions:
            self._cycles.want(
                partitions, subscription_partitions, since=since_committed_id, limit=limit
            )
            self._go()
        self.tell()

    def follow(self, partitions: Sequence[str]) -> None:
        """Fetch partitions and follow them beside the others, also one that was denied before."""
        names = normal_set(partitions)
        self._partitions = normal_set([*self._partitions, *names])
        self._denied.difference_update(names)
        if self.state == "active" and names:
            self._cycles.want(names, self.partitions)
            self._go()
        self.tell()

    def leave(self, partitions: Sequence[str]) -> None:
        """Stop following partitions: subscribe to the others only."""
        left = set(normal_set(partitions)).intersection(self._partitions)
        self._denied.difference_update(left)
        self._partitions = tuple(name for name in self._partitions if name not in left)
        self._settled.difference_update(left)
        if self.state == "active" and left:
            self._cycles.want(self.partitions or left, self.partitions)
            self._go()
        self.tell()

    def mend(self, damage: StoreDamaged) -> None:
        """The store is damaged: take a new file, and fetch everything but the drafts (sync 17.10).

        Only between connections, because whatever was under way is forgotten.
        """
        self._views.clear()
        try:
            self.store.replace(str(damage))
        except StoreError as error:
            self._listeners.fail("store_damaged", str(error))
        self.tell()

    def report(self, code: str, message: str) -> None:
        """Tell the application of a failure of the transport."""
        self._listeners.fail(code, message)
        self.tell()

    def report_rival(self, times: int) -> None:
        """Tell the application that somebody else uses its client id."""
        self.report(
            "superseded",
            f"another connection as {self.store.client_id!r} has ended this one {times} times in a "
            "row. Two devices take turns under one client_id: give each its own, and its own file.",
        )

    def flush(self) -> None:
        """Submit the drafts, as far as the session allows."""
        self._flushing = self.state == "active"
        self._go()
        self.tell()

    def receive(self, message: Json, size: int = 0) -> None:
        """Take one message of the server; `size` is that of its frame."""
        self.receive_all([(message, size)])

    def receive_all(self, messages: Iterable[tuple[Json, int]]) -> None:
        """Take messages in their order; broadcasts next to each other share a transaction."""
        ready: list[Commit] = []
        try:
            for message, size in messages:
                if self._actions.closing:
                    break
                kind, payload = message.get("type"), message.get("payload")
                if kind == "event_broadcast":
                    commit = parse(payload, Commit)
                    if not self._cycles.hold(commit, size):
                        ready.append(commit)
                    continue
                self._broadcast(ready)
                ready = []
                self._understand(kind, payload)
            self._broadcast(ready)
            self._go()
        except BadMessage as error:
            self._listeners.fail("bad_message", str(error))
            self._actions.close("bad_message")
        self.tell()

    # What the application does

    def submit(
        self, partitions: Sequence[str], event: Json, event_id: str | None = None
    ) -> StoredEvent | list[Fault]:
        """Store a draft, or return why it cannot be one; never waits for the server."""
        stored = self._drafts.submit(partitions, event, event_id, checked_in=self._partitions)
        try:
            self._go()
        except StoreError as error:  # it is stored, so this must not look as if it were not
            self._listeners.fail("store_failed", str(error))
            self._actions.close("store_failed")
        self.tell()
        return stored

    def submit_many(
        self, items: Iterable[tuple[Sequence[str], Json]]
    ) -> list[StoredEvent | list[Fault]]:
        """Submit several, each judged as if the ones before it were committed."""
        return [self.submit(partitions, event) for partitions, event in items]

    def withdraw(self, event_id: str) -> bool:
        """Forget a draft; False if it is decided or on its way, `KeyError` if it is unknown.

        One on its way stays: if it is committed, only the answer to it would tell.
        """
        row = self.store.row(event_id)
        if row.status != "draft" or self._queue.is_sending(event_id):
            return False
        self.store.withdraw(event_id)
        self._views.withdrawn(row.partitions)
        self._listeners.emit("withdrawn", row.partitions, {"id": event_id})
        self.tell()
        return True

    def view(self, partition: str) -> Json:
        """The state of a partition as the application should see it."""
        return self.look(partition, lambda state: state.export())

    def look(self, partition: str, see: Callable[[Fold], T]) -> T:
        """What `see` finds in that state, which it neither changes nor keeps."""
        [name] = normal_set([partition])
        view = self._views.shown(name)
        seen = see(view.fold)
        if view.failure is not None:
            self.store.unchecked.add(name)
            self._settle([name])
        if view.failure is not None or self._views.lost:
            self._go()
        self.tell()
        return seen

    def last_committed_id(self, partition: str | None = None) -> int:
        """How far a partition was fetched; without a name the smallest in use (sync D58)."""
        names = self.partitions if partition is None else normal_set([partition])
        return min(self.store.cursors(names).values(), default=0)

    def save_snapshot(self, partition: str) -> int | None:
        """Save the committed state; returns its position, or None if it must not be (sync D62)."""
        [name] = normal_set([partition])
        saved = self._save_snapshot(name)
        self.tell()
        return saved

    def _save_snapshot(self, name: str) -> int | None:
        if self._cycles.is_covering(name):
            return None
        view = self._views.committed(name)
        if not view.is_whole:
            return None
        if view.last and not self.store.save_snapshot(name, view.export(), view.last):
            return None
        view.unsaved = 0
        return view.last

    def prune(self) -> int:
        """Remove committed events that are part of a snapshot; returns how many.

        What is settled lacks nothing, and what came late has dropped its snapshot (sync D61).
        """
        if not self._cycles.is_idle:
            return self.store.prune(is_fetching=True)
        return self.store.prune(self._settled)

    def wipe(self, partition: str) -> int:
        """Forget a partition that is not followed any more; returns how many events that were."""
        [name] = normal_set([partition])
        self._views.drop(name)
        return self.store.wipe(name)

    def use_model(self, model: Model) -> None:
        """The application has a new model: rebuild everything with it."""
        self._drafts.model = model
        lost = self.store.adopt_reducers(model.model_version)
        self.store.unchecked.update(self._partitions)
        self._diverged.clear()
        self._cycles.try_states()
        self._views.clear(folds_for(self.profile, model, self._reduce))
        self._refetch(lost)
        self._go()
        self.tell()

    # Messages

    def _understand(self, kind: object, payload: object) -> None:
        match kind:
            case "connected":
                self._connected(parse(payload, Connected))
            case "sync_response":
                self._page(parse(payload, SyncPage))
            case "submit_events_result":
                results = parse(payload, Results).results
                self._queue.answered(decision.id for decision in results)
                self._decide(results)
            case "version_changed":
                self._adopt_version(parse(payload, VersionChanged).new_model_version)
            case "error":
                self._error(parse(payload, ServerError))

    def _connected(self, connected: Connected) -> None:
        granted = connected.capabilities
        if granted.profile not in (None, self.profile) or granted.tree_policy not in TREE_POLICIES:
            self.halted = "profile_unsupported"
            self._listeners.fail(self.halted, f"granted: {granted.profile} {granted.tree_policy}")
            self._actions.close(self.halted)
            return
        self.limits = connected.limits
        self._cycles.takes_states = granted.snapshots and self.profile == COMPATIBILITY
        self._listeners.emit("connected", (), {"profile": self.profile})
        self._become("active")
        self._adopt_history(connected.incarnation, connected.began)
        self._adopt_version(connected.model_version)
        if self.partitions:
            self._cycles.want(self.partitions, self.partitions)
        else:
            self._complete()

    def _page(self, page: SyncPage) -> None:
        cycle = self._cycles.current
        if cycle is None:
            return
        if page.partitions != cycle.partitions:
            raise BadMessage("sync_response for other partitions than those asked for")
        if cycle.stale:  # what it started from is void; `void` has put its partitions back
            self._cycles.abandon()
            return
        if self._adopt_version(page.model_version):
            self._cycles.abandon()
            return
        if cycle.since > page.sync_to_committed_id:
            self._cycles.abandon()
            # A page gave us that cursor, so the log was longer than it is now.
            self._violated(f"the log ends at {page.sync_to_committed_id}, before {cycle.since}")
            return
        state = None
        if page.snapshot is not None:
            state = self._cycles.collect(page)
            if state is None:
                self._request(cycle)
                return
            self._views.drop(state.partition)
        if page.has_more and page.next_since_committed_id <= cycle.since:
            raise BadMessage("sync_response announces more but does not advance")
        applied = self._record(
            lambda: self.store.store_page(
                page.events, cycle.partitions, page.next_since_committed_id, state
            )
        )
        if applied is None:
            self._cycles.abandon()
            return
        touched = _partitions_of(applied.arrivals) if state is None else cycle.partitions
        data: Json = {"events": len(applied.arrivals), "has_more": page.has_more}
        if state is not None:
            data["snapshot"] = state.committed_id
        self._listeners.emit("sync_page", touched, data | {"through": page.next_since_committed_id})
        self._listeners.emit_commits(applied.arrivals)
        # Without a subscription a partition is complete only for a moment.
        subscribed = set(page.effective_subscriptions)
        self._settled &= subscribed
        if self._cycles.advance(page):
            self._request(cycle)
            return
        if not cycle.stale:  # storing this very page may have voided a cursor
            self._settled |= subscribed.intersection(cycle.partitions)
        self._finish_cycle()

    def _finish_cycle(self) -> None:
        """Fetch again what was dropped, then apply the broadcasts that waited for the watermark."""
        if self._cycles.overflowed():
            self._cycles.want(self.partitions, self.partitions)
        self._broadcast(self._cycles.release())
        if self._cycles.is_idle:
            self._complete()

    def _complete(self) -> None:
        """Everything wanted has been fetched."""
        self._settle(normal_set(list(self.store.unchecked & self._settled)))
        self._fetch_lost()
        if not self._cycles.is_idle:
            return
        self._synced = True
        self._end_checks()
        self._become(self.state)

    def _broadcast(self, commits: Sequence[Commit]) -> None:
        if not commits:
            return
        applied = self._record(lambda: self.store.store_commits(commits))
        if applied is None:
            return
        by_id = {commit.id: commit for commit in commits}
        for arrival in applied.arrivals:
            commit = by_id[arrival.id]
            data = {"id": commit.id, "committed_id": commit.committed_id, "event": commit.event}
            self._listeners.emit(
                "broadcast", commit.partitions, data | {"client_id": commit.client_id}
            )
        self._listeners.emit_commits(applied.arrivals)
        self._settle(_partitions_of(applied.arrivals))

    def _decide(self, decisions: Sequence[Decision]) -> None:
        applied = self._record(lambda: self.store.store_results(decisions))
        if applied is None:
            return
        rejected = [self.store.row(event_id) for event_id in applied.rejected]
        for row in rejected:
            self._views.withdrawn(row.partitions)
        self._listeners.emit_commits(applied.arrivals)
        for row in rejected:
            data = {"id": row.id, "reason": row.reject_reason, "errors": list(row.errors)}
            self._listeners.emit("rejected", row.partitions, data)
        self._settle(_partitions_of(applied.arrivals))

    def _error(self, error: ServerError) -> None:
        self._listeners.fail(error.code, error.message, error.details)
        if error.code in FINAL:
            self.halted = error.code
            self._actions.close(error.code)
        elif error.code == "server_error":
            self._actions.close(error.code)
        elif error.code == "rate_limited":
            self._pause(error)
        elif error.code == "forbidden":
            denied = error.details.get("partitions")
            self._refused_cycle(error, denied if isinstance(denied, list) else [])
        elif error.code == "bad_request":
            if self._is_about_cycle(error):
                self._refused_cycle(error, [])
            elif (blamed := self._queue.refused()) is not None:
                self._reject(blamed, "the server refused this item alone")

    def _is_about_cycle(self, error: ServerError) -> bool:
        """Which of two requests in flight was meant: by the hint, else the batch."""
        cycle, hint = self._cycles.current, error.details.get("request_msg_id")
        if cycle is None:
            return False
        return hint == cycle.msg_id or (
            self._queue.in_flight is None and hint != self._heartbeat_id
        )

    def _refused_cycle(self, error: ServerError, denied: Sequence[str]) -> None:
        """The request failed: go on without what was denied; unchanged it would fail again."""
        cycle = self._cycles.current
        if cycle is None:
            return
        for name in denied or cycle.partitions:
            self._refusals[name] = f"{error.code}: {error.message}"
        before = self.partitions
        self._denied.update(denied)
        self._cycles.abandon(denied)
        if self.partitions and self.partitions != before:
            self._cycles.want(self.partitions, self.partitions)
        else:
            self._finish_cycle()

    def _pause(self, error: ServerError) -> None:
        given = error.details.get("retry_after_ms")
        wait = given if isinstance(given, (int, float)) and given >= 0 else RETRY_AFTER_MS
        cycle = self._cycles.current
        if cycle is not None and self._is_about_cycle(error):
            cycle.sent_at = 0
        elif error.details.get("request_msg_id") != self._heartbeat_id:
            self._queue.postponed()
        self._held_until = self._now() + min(int(wait), MAX_RETRY_AFTER_MS)

    # Consequences

    def _go(self) -> None:
        """Send whatever may be sent now."""
        self._fetch_lost()
        if self.state != "active" or self._actions.closing or self._held_until is not None:
            return
        cycle = self._cycles.start()
        if cycle is not None:
            self._request(cycle)
        while self._synced and (self._submits_itself or self._flushing):
            taken = self._queue.take(self.limits)
            for event_id in taken.oversized:
                self._reject(event_id, f"larger than {self.limits.max_message_bytes} bytes")
            if taken.items:
                msg_id = self._actions.send("submit_events", {"events": taken.items})
                self._queue.sent(msg_id, taken.items, self._now())
            if not taken.oversized:
                self._flushing = self._flushing and self._queue.in_flight is not None
                return

    def _request(self, cycle: Cycle) -> None:
        cycle.msg_id = self._actions.send("sync", cycle.request())
        cycle.sent_at = self._now()

    def _record(self, store: Callable[[], Applied]) -> Applied | None:
        """Store something; None if it contradicted the store, which has been dealt with."""
        try:
            applied = store()
        except IntegrityViolation as violation:
            self._violated(str(violation))
            return None
        self._views.arrived(applied.arrivals)
        if applied.lost:
            self._refetch(applied.lost)
        return applied

    def _settle(self, partitions: Iterable[str]) -> None:
        """These have changed: check their states where nothing is missing (sync D54)."""
        self._due.update(dict.fromkeys(name for name in partitions if name in self._settled))
        self._check()

    def _check(self) -> None:
        """Bring states that have changed up to date, and save those that have grown.

        Only `CHECK_EVENTS` at a time, the rest at the next `tick`: a client that has fetched a
        million events must still send heartbeats.
        """
        last = self._views.applied + CHECK_EVENTS
        while self._due and self._cycles.is_idle and self._views.applied < last:
            partition = next(iter(self._due))
            if partition in self._settled:
                if not self._views.is_ready(partition, last - self._views.applied):
                    return
                if not self._is_sound(partition):
                    return
            del self._due[partition]

    def _is_sound(self, partition: str) -> bool:
        """Whether a state that is up to date may stay; if not, everything is fetched anew."""
        view = self._views.committed(partition)
        if view.failure is not None and partition not in self._diverged:
            text = f"{partition}: {view.failure.committed_id}: {view.failure.fault.message}"
            if not self._recovering:
                self._violated(text)
                return False
            self._diverged.add(partition)
            self._listeners.fail("integrity_violation", f"{text}; fetching anew did not help")
        self.store.unchecked.discard(partition)
        if self._saves_all or view.unsaved >= SNAPSHOT_EVERY:
            self._save_snapshot(partition)
        return True

    def _end_checks(self) -> None:
        """Once everything is fetched and checked, a contradiction would be a new one."""
        if self._synced and self._cycles.is_idle and not self._due:
            self._recovering = self._saves_all = False

    def _violated(self, reason: str) -> None:
        """What is stored cannot be trusted: forget it and fetch everything anew (sync 17.6)."""
        self._listeners.fail("integrity_violation", reason)
        self.store.reset()
        self._views.clear()
        self._settled.clear()
        self._due.clear()
        self._cycles.release()
        if self._recovering:
            self._actions.close("integrity_violation")
            return
        self._recovering = True
        self._synced = False
        self._cycles.give_up_states(self.partitions)  # one of them may be what is wrong
        self._refetch(self.partitions)
        if self._cycles.is_idle:
            self._complete()

    def _adopt_history(self, incarnation: str | None, began: int) -> None:
        """Where the log is not the one that was followed here, keep what both share (sync 17.6)."""
        old = self.store.incarnation
        if incarnation is None or incarnation == old:
            return
        if old is None:
            self.store.follow(incarnation)
            return
        dropped = self.store.rewind(incarnation, began)
        self._views.clear()
        self._diverged.clear()
        self._cycles.try_states()
        data = {"incarnation": incarnation, "began": began, "dropped": dropped}
        self._listeners.emit("history_reset", self.partitions, data)

    def _adopt_version(self, version: int | None) -> bool:
        """Whether the model version is new; then everything derived is made anew (sync 17.8)."""
        old = self.store.model_version
        if version is None or version == old:
            return False
        self.store.change_model_version(version, self.partitions)
        self._views.clear()
        self._cycles.try_states()
        self._saves_all = True
        data = {"old_model_version": old, "new_model_version": version}
        self._listeners.emit("version_changed", self.partitions, data)
        self._refetch(self.partitions)
        return True

    def _fetch_lost(self) -> None:
        lost, self._views.lost = self._views.lost, set()
        if lost:
            self._cycles.give_up_states(lost)
            self._refetch(lost)

    def _refetch(self, partitions: Iterable[str]) -> None:
        """Cursors of these are gone: fetch those in use from 0."""
        lost = set(partitions)
        self._settled -= lost
        self._cycles.void(lost)
        wanted = lost.intersection(self.partitions)
        if wanted and self.state == "active":
            self._cycles.want(wanted, self.partitions)

    def _reject(self, event_id: str, message: str) -> None:
        """Reject a draft here, because the server cannot be asked about it."""
        errors = ({"field": "event", "message": message},)
        self._decide([Decision(event_id, "rejected", self._now(), None, "bad_request", errors)])

    def _awaited(self) -> list[int]:
        """For each awaited answer, since when nothing has been heard."""
        cycle, batch = self._cycles.current, self._queue.in_flight
        times = [self._asked_at] if self.state == "connecting" else []
        if batch is not None:
            times.append(batch.sent_at)
        if cycle is not None and cycle.sent_at:
            times.append(cycle.sent_at)
        return [max(sent, self._progressed_at) for sent in times]

    def _become(self, state: ConnectionState) -> None:
        self.state = state
        synced = self._synced and self._settled.issuperset(self.partitions)
        self._listeners.emit("status_changed", (), {"state": state, "synced": synced})


def _partitions_of(arrivals: Iterable[Arrival]) -> tuple[str, ...]:
    return normal_set([name for arrival in arrivals for name in arrival.partitions])
