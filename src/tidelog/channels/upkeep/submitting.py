"""From what a front asks to be written to its answer: states are loaded, the committer decides.

A front waits for the answer to one request of a connection before it sends the next, so requests
need no order among each other but that of the committer's queue.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from tidelog.base.clock import Clock
from tidelog.base.errors import QueueFull
from tidelog.channels.decide import rules
from tidelog.channels.decide.idempotency import batch_scope
from tidelog.channels.decide.rules import (
    LiveEvent,
    PublishAnswer,
    PublishContext,
    PublishTarget,
    Terms,
)
from tidelog.channels.decide.state import ChannelState, MessageState
from tidelog.channels.messages import (
    Done,
    Event,
    Live,
    Mutate,
    Mutated,
    Publish,
    Published,
    Refused,
    Summarize,
    Summary,
    Target,
)
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.message_ids import MessageIds
from tidelog.channels.protocol.names import stream_name
from tidelog.channels.protocol.requests import Mutation, MutationResult, Publication
from tidelog.channels.protocol.runs import is_covered
from tidelog.channels.protocol.version import position_of
from tidelog.channels.upkeep.state_loader import StateLoader
from tidelog.link.ends import failed
from tidelog.link.message import Message
from tidelog.log.committer import Committer
from tidelog.log.decision import Answer, Failure, Item, Names, Refuse, View
from tidelog.log.request import Submission

Tell = Callable[[Message], None]
"""Takes the answer to a request."""

Spread = Callable[[Live | Summary], "asyncio.Future[int]"]
"""Gives a frame that no entry carries to all fronts; done when other nodes are told."""

MAX_LOADING_REQUESTS = 4096
MAX_LOADING_BYTES = 32 * 1024**2
"""Requests that wait until the states they are decided by are read, and about what they hold. They
are not in the committer's queue yet, whose bounds are for those that are."""

Counted = Callable[[str, frozenset[str]], dict[str, int]]
"""Returns what the response to a publish is to say of a channel."""

ChannelStates = dict[str, ChannelState | None]
"""By channel; None where it has yet to be loaded."""


class _Nothing:
    """An item without an effect: it is decided after whatever is queued already."""

    def decide(self, view: View) -> Refuse:
        """See `Item.decide`."""
        del view
        return Refuse(None)


class _Publishing:
    """A publish in the committer's queue."""

    __slots__ = (
        "_channels",
        "_is_batch",
        "_items",
        "_submitting",
        "_tell",
        "names",
        "size_bytes",
        "waits_for_entries",
    )

    def __init__(
        self,
        submitting: "Submitting",
        items: Sequence[rules.Publish],
        key: tuple[str, str] | None,
        channels: ChannelStates,
        tell: Tell,
        *,
        is_batch: bool,
    ) -> None:
        if len(items) == 1 and key is None:
            self.names = items[0].names()
        else:
            names = [item.names() for item in items]
            dedupe = tuple(each for n in names for each in n.dedupe)
            self.names = Names(
                dedupe=dedupe if key is None else (*dedupe, key),
                streams=tuple(stream for n in names for stream in n.streams),
            )
        self.size_bytes = 256
        targets = 0
        for item in items:
            self.size_bytes += _size(item.publication)
            targets += len(item.targets)
        # What no entry carries leaves with the answer, after the entries before it.
        self.waits_for_entries = targets == len(self.names.streams)
        self._submitting = submitting
        self._items = items
        self._channels = channels
        self._tell = tell
        self._is_batch = is_batch

    def items(self) -> Sequence[Item]:
        """See `Request.items`."""
        return self._items

    def hand_over(self, answers: Sequence[Answer | Failure]) -> None:
        """See `Request.hand_over`. Events that are not kept are delivered in their turn."""
        self._submitting.release(self._channels)
        live: tuple[LiveEvent, ...] = ()
        failure: Failure | None = None
        refused: fault.Fault | None = None
        body, position = b"{}", 0
        for index, each in enumerate(answers):
            if type(each) is PublishAnswer:
                body, position = each.body or body, each.position or position
                live += each.live
            elif isinstance(each, Failure):
                failure = failure or each
            elif refused is None:
                refused = each.at(index) if self._is_batch else each
        answer: Message = Published(body, position)
        if failure is not None:
            answer = failed(failure.error)
        elif refused is not None:
            answer = Refused.of(refused)
        if live:
            self._submitting.spread(live, answer, self._tell)
        else:
            self._tell(answer)


class _Mutating:
    """A change of a message in the committer's queue."""

    __slots__ = ("_channel", "_item", "_message", "_submitting", "_tell", "names", "size_bytes")

    waits_for_entries = True

    def __init__(
        self,
        submitting: "Submitting",
        item: rules.Mutate,
        size_bytes: int,
        channel: ChannelState,
        message: MessageState,
        tell: Tell,
    ) -> None:
        self.names = item.names()
        self.size_bytes = size_bytes
        self._submitting = submitting
        self._item = item
        self._channel = channel
        self._message = message
        self._tell = tell

    def items(self) -> Sequence[Item]:
        """See `Request.items`."""
        return (self._item,)

    def hand_over(self, answers: Sequence[Answer | Failure]) -> None:
        """See `Request.hand_over`."""
        self._submitting.release_message(self._channel, self._message)
        [answer] = answers
        if isinstance(answer, MutationResult):
            is_new = not answer.is_duplicate
            self._tell(Mutated(answer, int(answer.version_serial[-20:]) if is_new else 0))
        elif isinstance(answer, Failure):
            self._tell(failed(answer.error))
        else:
            self._tell(Refused.of(answer))


class Submitting:
    """The way into the committer's queue."""

    def __init__(
        self,
        committer: Committer,
        states: StateLoader,
        clock: Clock,
        terms: Terms,
        *,
        ids: MessageIds,
        spread: Spread,
        counted: Counted,
    ) -> None:
        self._committer = committer
        self._states = states
        self._clock = clock
        self._terms = terms
        self._ids = ids
        self._spread = spread
        self._counted = counted
        self._work: set[asyncio.Task[None]] = set()
        self._loading = self._loading_bytes = 0
        """Requests that wait for their states, and what they hold."""

    # Publishing.

    def publish(self, wanted: Publish, tell: Tell) -> None:
        """Queue a publish; at once if all states are in memory, the usual case."""
        states, app_id = self._states, wanted.app_id
        channels: ChannelStates = {}
        is_ready = True
        for event in wanted.events:
            for target in event.targets:
                if target.mode != "live" and target.channel not in channels:
                    state = states.channel(stream_name(app_id, target.channel))
                    channels[target.channel] = state
                    is_ready = is_ready and state is not None
        if is_ready:
            self._queue_publish(wanted, channels, tell)
        else:
            size = sum(_size(event.publication) for event in wanted.events)
            self._load(
                self._load_channels(wanted, channels, tell),
                size,
                tell,
                or_else=partial(self.release, channels),
            )

    async def _load_channels(self, wanted: Publish, channels: ChannelStates, tell: Tell) -> None:
        try:
            for name, state in channels.items():
                if state is None:
                    stream = stream_name(wanted.app_id, name)
                    channels[name] = await self._states.load_channel(stream)
        except Exception as error:  # noqa: BLE001 - a front waits for the answer
            self.release(channels)
            tell(failed(error))
        else:
            self._queue_publish(wanted, channels, tell)

    def _queue_publish(self, wanted: Publish, channels: ChannelStates, tell: Tell) -> None:
        try:
            self._committer.submit(self._publishing(wanted, channels, tell))
        except Exception as error:  # noqa: BLE001 - a front waits for the answer
            self.release(channels)
            tell(failed(error))

    def _publishing(self, wanted: Publish, channels: ChannelStates, tell: Tell) -> _Publishing:
        app_id, events = wanted.app_id, wanted.events
        key = None if wanted.key is None else (batch_scope(app_id), wanted.key)
        context = PublishContext(
            count=len(events), is_batch=wanted.is_batch, key=key, ttl_ms=self._terms.ttl_ms
        )
        items = [
            rules.Publish(
                event.publication,
                tuple([self._target(app_id, event, each, channels) for each in event.targets]),
                app_id=app_id,
                context=context,
                index=index,
                states=self._states,
                terms=self._terms,
                client_id=event.client_id,
                attributed_to=event.attributed_to,
                is_client_event=event.is_client_event,
                own_run=event.own_run,
            )
            for index, event in enumerate(events)
        ]
        return _Publishing(self, items, key, channels, tell, is_batch=wanted.is_batch)

    def _target(
        self, app_id: str, event: Event, target: Target, channels: ChannelStates
    ) -> PublishTarget:
        state = channels.get(target.channel) if target.mode != "live" else None
        stream = stream_name(app_id, target.channel) if state is None else state.stream
        info = event.publication.info
        return PublishTarget(
            target.channel,
            stream,
            target.mode,
            state,
            event.publication.message_id or self._ids.message(),
            self._counted(stream, info) if info else {},
            target.is_limited,
            target.versions_off,
        )

    def release(self, channels: ChannelStates) -> None:
        """Hold the states of a request no more."""
        for state in channels.values():
            if state is not None:
                self._states.release(state)

    def spread(self, events: Iterable[LiveEvent], answer: Message, tell: Tell) -> None:
        """Give every front events that nothing is kept of, then answer.

        No entry carries them to the other nodes, so the answer waits until those were told.
        """
        now = self._clock.now_ms()
        self._answer_told([self._spread(_live(event, now)) for event in events], answer, tell)

    def _answer_told(
        self, told: Sequence["asyncio.Future[int]"], answer: Message, tell: Tell
    ) -> None:
        if all(each.done() and not each.exception() for each in told):
            tell(answer)
        else:
            self._do(self._answer_later(told, answer, tell))

    async def _answer_later(
        self, told: Sequence["asyncio.Future[int]"], answer: Message, tell: Tell
    ) -> None:
        try:
            for each in told:
                await each
        except Exception as error:  # noqa: BLE001 - a front waits for the answer
            answer = failed(error)
        tell(answer)

    # Mutations.

    def mutate(self, wanted: Mutate, tell: Tell) -> None:
        """Queue a change of a message; at once if it is in memory."""
        mutation = wanted.mutation
        number = position_of(mutation.message_serial, self._terms.log_tag)
        if number is None:
            tell(_not_found(mutation))
            return
        stream = stream_name(wanted.app_id, mutation.channel)
        channel = self._states.channel(stream)
        message = None if channel is None else self._states.message(stream, number)
        if channel is None or message is None:
            if channel is not None:
                self._states.release(channel)
            size = 512 + mutation.data_bytes
            self._load(self._load_message(wanted, stream, number, tell), size, tell)
        else:
            self._queue_mutation(wanted, channel, message, tell)

    async def _load_message(self, wanted: Mutate, stream: str, number: int, tell: Tell) -> None:
        try:
            channel = await self._states.load_channel(stream)
            try:
                message = await self._states.load_message(stream, number)
            except BaseException:
                self._states.release(channel)
                raise
        except Exception as error:  # noqa: BLE001 - a front waits for the answer
            tell(failed(error))
            return
        if message is None:
            self._states.release(channel)
            tell(_not_found(wanted.mutation))
        else:
            self._queue_mutation(wanted, channel, message, tell)

    def _queue_mutation(
        self, wanted: Mutate, channel: ChannelState, message: MessageState, tell: Tell
    ) -> None:
        mutation = wanted.mutation
        refused = wanted.refused
        if message.latest.message_serial != mutation.message_serial:
            refused = _not_found(mutation)
        if refused is not None:
            self.release_message(channel, message)
            tell(refused)
            return
        try:
            self._committer.submit(self._mutating(wanted, channel, message, tell))
        except Exception as error:  # noqa: BLE001 - a front waits for the answer
            self.release_message(channel, message)
            tell(failed(error))

    def _mutating(
        self, wanted: Mutate, channel: ChannelState, message: MessageState, tell: Tell
    ) -> _Mutating:
        mutation = wanted.mutation
        item = rules.Mutate(
            mutation,
            channel,
            message,
            author=wanted.app_id,
            actor=wanted.actor,
            message_id=self._ids.message(),
            terms=self._terms,
            is_limited=self.is_limited(mutation.channel),
        )
        size = _bytes_to_write(mutation, message)
        return _Mutating(self, item, size, channel, message, tell)

    def release_message(self, channel: ChannelState, message: MessageState) -> None:
        """Hold the states of a change no more."""
        self._states.release(channel)
        self._states.release_message(message)

    def is_limited(self, channel: str) -> bool:
        """Whether the limits of streamed content hold in a channel (channels D14)."""
        return is_covered(self._terms.limits.channels, channel)

    # Summaries.

    def summarize(self, wanted: Summarize, tell: Tell) -> None:
        """Give every front a summary, after what is queued already.

        Raises:
            QueueFull: see `Committer.submit`.
            ShuttingDown: see `Committer.submit`.
        """

        def answered(answers: Sequence[Answer | Failure]) -> None:
            [answer] = answers
            if isinstance(answer, Failure):
                tell(failed(answer.error))
            else:
                told = self._spread(Summary(wanted.stream, wanted.summary))
                self._answer_told([told], Done(), tell)

        self._committer.submit(Submission(Names(), 64, (_Nothing(),), answered))

    def _load(
        self,
        work: Coroutine[Any, Any, None],
        size_bytes: int,
        tell: Tell,
        or_else: Callable[[], None] | None = None,
    ) -> None:
        """Load states for a request of about this size, or refuse it if too many wait for that."""
        if (
            self._loading >= MAX_LOADING_REQUESTS
            or self._loading_bytes + size_bytes > MAX_LOADING_BYTES
        ) and self._loading:
            work.close()
            if or_else is not None:
                or_else()
            tell(failed(QueueFull("too many requests wait for the store; retry in a moment")))
            return
        self._loading += 1
        self._loading_bytes += size_bytes
        self._do(self._loaded(work, size_bytes))

    async def _loaded(self, work: Coroutine[Any, Any, None], size_bytes: int) -> None:
        try:
            await work
        finally:
            self._loading -= 1
            self._loading_bytes -= size_bytes

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


def _not_found(mutation: Mutation) -> Refused:
    return Refused.of(fault.not_found(mutation.message_serial, mutation.channel))


def _live(event: LiveEvent, now_ms: int) -> Live:
    item, wanted = event.item, event.item.publication
    return Live(
        stream=event.target.stream,
        message_id=event.target.message_id,
        name=wanted.name,
        data=wanted.data,
        extras=wanted.extras,
        tags=wanted.tags,
        client_id=item.attributed_to,
        socket_id=wanted.socket_id,
        is_client_event=item.is_client_event,
        at=now_ms,
    )


def _bytes_to_write(mutation: Mutation, message: MessageState) -> int:
    """About what a change makes the store write."""
    extras = mutation.patch.extras
    has_extras = isinstance(extras, bytes)
    size = 512 + message.bytes_to_write(mutation.data_bytes, is_other_status=has_extras)
    if isinstance(extras, bytes):
        size += len(extras)
    if mutation.metadata is not None:
        size += len(mutation.metadata)
    if mutation.description is not None:
        size += len(mutation.description)
    return size


def _size(publication: Publication) -> int:
    """About what a publish holds in memory while it waits."""
    each = len(publication.data) + len(publication.extras or b"") + 256
    return each * len(publication.channels)
