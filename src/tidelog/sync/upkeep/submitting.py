"""From a front's submit to its answer: states are pinned, the committer decides, the front is told.

Submits of one connection are committed in the order in which they came (sync D9), also if a state
has to be loaded for the first of them and not for the second. What came after one that was not
taken, or that failed, is not committed: a client sees its submits fail in their order too.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from tidelog.base.errors import QueueFull, ShuttingDown, StoreUnavailable, TidelogError
from tidelog.link.ends import failed
from tidelog.link.message import Message, error_name
from tidelog.log.committer import Committer
from tidelog.log.decision import Answer, Failure, Item, Names
from tidelog.sync.decide.plugin_guard import GuardedPlugin
from tidelog.sync.decide.rules import STREAM, SubmitItem, in_sequence
from tidelog.sync.messages import NotTaken, Submit, Submitted
from tidelog.sync.protocol.items import PreparedItem
from tidelog.sync.upkeep.state_cache import CachedState, StateCache

_STREAMS = (STREAM,)

Tell = Callable[[Message], None]
"""Takes the answer to a submit."""


class Sender:
    """A connection whose submits keep their order."""

    __slots__ = ("failed", "loading", "refused")

    def __init__(self) -> None:
        self.failed = False
        """Whether the store failed one of its submits: those after it must not be committed."""
        self.refused = -1
        """The last `Submit.round` of which one was not taken."""
        self.loading: asyncio.Task[None] | None = None
        """The last submit that waits for its states, or for one before it that does."""


class _Request:
    """A submit in the committer's queue."""

    __slots__ = (
        "_items",
        "_pinned",
        "_sender",
        "_states",
        "_stops",
        "_tell",
        "names",
        "size_bytes",
        "waits_for_entries",
    )

    def __init__(
        self,
        submit: Submit,
        items: Sequence[SubmitItem],
        states: StateCache,
        pinned: dict[str, CachedState],
        sender: Sender | None,
        tell: Tell,
    ) -> None:
        keys = tuple([item.key for item in items if not item.prepared.refused])
        self.names = Names(keys, _STREAMS)
        self.size_bytes = submit.size_bytes
        self.waits_for_entries = not submit.follows
        self._items = items
        self._stops = submit.stops_at_rejection
        self._states = states
        self._pinned = pinned
        self._sender = sender
        self._tell = tell

    def items(self) -> Sequence[Item]:
        """None, once an earlier request of the connection has failed (sync D9)."""
        if self._sender is not None and self._sender.failed:
            return ()
        return in_sequence(self._items) if self._stops else self._items

    def hand_over(self, answers: Sequence[Answer | Failure]) -> None:
        """See `Request.hand_over`."""
        if self._pinned:
            self._states.unpin(self._pinned)
        results: list[Answer] = []
        for answer in answers:
            if isinstance(answer, Failure):
                self._fail(answer.error)
                return
            results.append(answer)
        if results:
            self._tell(Submitted(results))
        else:  # there were no items any more
            self._fail(StoreUnavailable("a submit before this one failed"))

    def _fail(self, error: TidelogError) -> None:
        if self._sender is not None:
            self._sender.failed = True
        self._tell(failed(error))


class Submitting:
    """The way into the committer's queue."""

    def __init__(
        self, committer: Committer, states: StateCache, plugin: GuardedPlugin | None
    ) -> None:
        self._committer = committer
        self._states = states
        self._plugin = plugin
        self._loading: set[asyncio.Task[None]] = set()

    def take(self, submit: Submit, sender: Sender | None, tell: Tell) -> None:
        """Queue a submit; at once if all states are warm, the usual case."""
        wanted = _wanted(submit.items)
        before = None if sender is None else sender.loading
        if before is None:
            pinned = self._states.pin_ready(wanted) if wanted else {}
            if pinned is not None:
                self._queue(submit, pinned, sender, tell)
                return
        task = asyncio.create_task(self._load(submit, wanted, sender, tell, before))
        self._loading.add(task)
        task.add_done_callback(partial(self._loaded, sender))
        if sender is not None:
            sender.loading = task

    async def _load(
        self,
        submit: Submit,
        wanted: list[str],
        sender: Sender | None,
        tell: Tell,
        before: asyncio.Task[None] | None,
    ) -> None:
        """Load the states that decisions may look at, then queue the request in its turn."""
        if before is not None:
            await asyncio.wait([before])
        try:
            pinned = await self._states.pin(wanted)
        except Exception as error:  # noqa: BLE001 - a front waits for the answer
            if sender is not None:
                sender.failed = True
            tell(failed(error))
        else:
            self._queue(submit, pinned, sender, tell)

    def _loaded(self, sender: Sender | None, task: asyncio.Task[None]) -> None:
        self._loading.discard(task)
        if sender is not None and sender.loading is task:
            sender.loading = None

    def _queue(
        self, submit: Submit, pinned: dict[str, CachedState], sender: Sender | None, tell: Tell
    ) -> None:
        if pinned:
            items = [self._with_states(item, pinned) for item in submit.items]
        else:
            items = [SubmitItem(item) for item in submit.items]
        try:
            if sender is not None and submit.round <= sender.refused:
                raise QueueFull("a submit before this one found no room; retry in a moment")
            self._committer.submit(_Request(submit, items, self._states, pinned, sender, tell))
        except (QueueFull, ShuttingDown) as error:
            self._states.unpin(pinned)
            if sender is not None:
                sender.refused = submit.round
            tell(NotTaken(error_name(error), str(error)))

    def _with_states(self, item: PreparedItem, pinned: dict[str, CachedState]) -> SubmitItem:
        if not item.needs_state():
            return SubmitItem(item)
        check = None if self._plugin is None else self._plugin.check_of(item)
        return SubmitItem(item, tuple([pinned[name] for name in item.partitions]), check)


def _wanted(items: Sequence[PreparedItem]) -> list[str]:
    """Partitions whose tree state a decision may look at."""
    wanted = [item for item in items if item.needs_state()]
    return sorted({name for item in wanted for name in item.partitions}) if wanted else []
