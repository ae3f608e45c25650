"""What a publish and a mutation do: pure decisions (channels 4 and 5).

Everything stateless was checked before (`requests`). A decision sees the state as its predecessors
in the same batch left it, and returns what to append and what to say, or a `Fault` and nothing.
"""

from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tidelog.channels.decide.idempotency import (
    batch_item_scope,
    event_scope,
    fingerprint,
    receipt_scope,
    remember,
    run_scope,
    unexpired,
)
from tidelog.channels.decide.state import Changed, ChannelState, Created, MessageState, StateCache
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.capabilities import Actor, Denied, grant
from tidelog.channels.protocol.extras import transport_of
from tidelog.channels.protocol.fault import AI_LIMIT, Fault
from tidelog.channels.protocol.requests import (
    OK,
    Change,
    Mode,
    Mutation,
    MutationResult,
    Publication,
)
from tidelog.channels.protocol.runs import (
    CANCEL,
    NOT_OWN,
    PREFIX,
    check_client_ids,
    check_metadata,
)
from tidelog.channels.protocol.verbs import CREATE, kind_of
from tidelog.channels.protocol.version import (
    EVENT,
    SURFACE,
    Version,
    encode_body,
    encode_version,
    origin_of,
    placed,
    version_serial,
)
from tidelog.channels.settings import AiTransport, set_by
from tidelog.log.decision import Accept, Names, Refuse, RowChange, StateChange, View
from tidelog.log.draft import Draft
from tidelog.store.rows import DedupeRow

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

NO_RESULT = b"null"
"""Outcome of an item of a batch that has no entry in the response."""

LIVE_RUN_MS = 24 * 3600 * 1000
"""How long it is known whose a run is whose start is not kept (runs 5); no run takes a day."""


class Terms(Struct, frozen=True):
    """What all decisions of a node go by."""

    log_tag: str
    limits: AiTransport
    ttl_ms: int
    """How long a response is kept under an idempotency key."""
    is_shared: bool
    """Whether other nodes write to the store."""


class PublishTarget(Struct):
    """One channel of a publish."""

    channel: str
    stream: str
    mode: Mode
    state: ChannelState | None
    """None if nothing is stored."""
    message_id: str
    """The client's, or a fresh one."""
    counts: dict[str, int]
    """What the response says about the channel, counted beforehand."""
    is_limited: bool
    """Whether the limits on streamed content apply (channels D14)."""
    versions_off: str | None = None
    """The setting by which its messages cannot change, if they cannot."""


class LiveEvent(Struct, frozen=True):
    """A publish that nothing is kept of: to be delivered after what is committed already."""

    target: PublishTarget
    item: "Publish"


class PublishAnswer(Struct, frozen=True):
    """A publish that was accepted, or had been before."""

    live: tuple[LiveEvent, ...] = ()
    body: bytes | None = None
    """The response of the whole request; in the answer of its last item."""
    position: int = 0
    """Of the last entry that it appends."""


class PublishContext:
    """What the items of one request share; an item may be decided again, and those after it."""

    def __init__(
        self, *, count: int, is_batch: bool, key: tuple[str, str] | None, ttl_ms: int
    ) -> None:
        self._count = count
        self._is_batch = is_batch
        self.key = key
        """Scope and key of a batch that may be repeated under it."""
        self._ttl_ms = ttl_ms
        self._results: list[bytes | None] = []
        self.cached: bytes | None = None
        self._failed: int | None = None
        """Index of the first item that was refused, once there is one."""

    @property
    def has_failed(self) -> bool:
        """Whether an item was refused."""
        return self._failed is not None

    def fail(self, index: int) -> None:
        """An item is refused."""
        self._failed = index

    def begin(self, view: View, index: int) -> None:
        """An item is being decided: whatever it and those after it have left is of no account."""
        del self._results[index:]
        if self._failed is not None and self._failed >= index:
            self._failed = None
        if index > 0:
            return
        self.cached = None
        if self.key is not None:
            known = unexpired(view.dedupe(*self.key), view.now_ms)
            self.cached = None if known is None else known.outcome

    def finish(self, view: View, result: bytes | None, accept: Accept) -> Accept:
        """An item is decided: `result` is its entry in the response to a batch, if it has one.

        The last one adds the response to the request and, under a key, its receipt.
        """
        self._results.append(result)
        if len(self._results) < self._count:
            return accept
        body = b"{}"
        if any(found is not None for found in self._results):
            body = b'{"batch":[' + b",".join(found or b"{}" for found in self._results) + b"]}"
        if not self._is_batch:
            body = accept.answer.body
        elif self.key is not None:
            remember(view, accept, self.key, body, self._ttl_ms)
        accept.answer = PublishAnswer(accept.answer.live, body, accept.answer.position)
        return accept


class Publish:
    """One event for one or more channels: all of them get it, or none (channels D19)."""

    def __init__(
        self,
        publication: Publication,
        targets: tuple[PublishTarget, ...],
        *,
        app_id: str,
        context: PublishContext,
        index: int,
        states: StateCache,
        terms: Terms,
        client_id: str | None = None,
        attributed_to: str | None = None,
        is_client_event: bool = False,
        own_run: str | None = None,
    ) -> None:
        self.publication = publication
        self.targets = targets
        self.client_id = client_id
        """Of the publishing socket, if it has one: the creator of the message."""
        self.attributed_to = attributed_to or client_id
        """The `user_id` of the frame: on a presence channel the member that sent it."""
        self.is_client_event = is_client_event
        self._own_run = own_run
        """The run it cancels, if it may cancel its own only."""
        self._app_id = app_id
        self._context = context
        self._index = index
        self._states = states
        self._tag = terms.log_tag
        self._limits = terms.limits
        self._ttl_ms = terms.ttl_ms
        key = publication.idempotency_key
        self._own_key = None if key is None else (event_scope(app_id), key)
        self._item_key = (
            None if context.key is None else (batch_item_scope(app_id, index), context.key[1])
        )
        """A batch may be refused at a later item; when it is repeated, this one was published."""
        named = publication.message_id or publication.extras_key or key
        self._receipt_key = named
        self._receipt_ttl_ms = None if publication.message_id is not None else terms.ttl_ms

    def names(self) -> Names:
        """What the decision reads, besides the key of a whole batch."""
        dedupe = [key for key in (self._own_key, self._item_key) if key is not None]
        if self._receipt_key is not None:
            dedupe += [(receipt_scope(t.stream), self._receipt_key) for t in self.targets]
        starts = self.publication.starts
        run_id = self._own_run if starts is None else starts.run_id
        if run_id is not None:
            dedupe += [(run_scope(t.stream), run_id) for t in self.targets]
        streams = tuple(t.stream for t in self.targets if t.mode != "live")
        return Names(dedupe=tuple(dedupe), streams=streams)

    def decide(self, view: View) -> Accept | Refuse:
        """See `Item.decide`."""
        context = self._context
        context.begin(view, self._index)
        if context.cached is not None:
            return Refuse(PublishAnswer(body=context.cached))
        if context.has_failed:
            # An earlier item was refused, and its fault is the response to the whole batch.
            return Refuse(PublishAnswer())
        if known := self._known(view, self._item_key):
            result = None if known.outcome == NO_RESULT else known.outcome
            return context.finish(view, result, Accept(PublishAnswer()))
        if known := self._known(view, self._own_key):
            # Used before: the same response again; in a batch, an empty entry.
            accept = Accept(PublishAnswer(body=known.outcome))
            return self._finish(view, None, accept)
        decision = self._publish(view)
        if isinstance(decision, Fault):
            context.fail(self._index)
            return Refuse(decision)
        return decision

    def _known(self, view: View, key: tuple[str, str] | None) -> DedupeRow | None:
        return None if key is None else unexpired(view.dedupe(*key), view.now_ms)

    def _publish(self, view: View) -> Accept | Fault:
        accept = Accept(None)
        drafts: list[Draft] = []
        rows: list[RowChange] = []
        states: list[StateChange] = []
        live: list[LiveEvent] = []
        results: dict[str, dict[str, Any]] = {}
        for target in self.targets:
            key = receipt = None
            proof = b""
            if self._receipt_key is not None:
                key = (receipt_scope(target.stream), self._receipt_key)
                receipt = unexpired(view.dedupe(*key), view.now_ms)
                proof = self._proof(target)
            if receipt is not None:
                if receipt.fingerprint != proof:
                    return fault.payload_conflict()
                results[target.channel] = {**_decode(receipt.outcome), **target.counts}
                continue
            if found := self._over_limit(target) or self._not_own(view, target):
                return found
            outcome: dict[str, Any]
            committed_id = None
            if target.mode == "live":
                self._note_run(view, accept, target, None)
                live.append(LiveEvent(target, self))
                outcome = {"acknowledgement_id": target.message_id}
            else:
                committed_id = view.next_committed_id + len(drafts)
                version = self._stored(view, target, committed_id)
                drafts.append(version[0])
                rows += version[1]
                states.append(version[2])
                outcome = version[3]
                self._note_run(view, accept, target, committed_id)
            results[target.channel] = {**outcome, **target.counts}
            if key is not None:
                is_kept = target.mode != "live"
                remember(
                    view,
                    accept,
                    key,
                    _encode(outcome),
                    self._receipt_ttl_ms if is_kept else self._ttl_ms,
                    committed_id=committed_id,
                    proof=proof,
                )
        accept.entries = tuple(drafts)
        accept.rows = tuple(rows)
        accept.states = tuple(states)
        is_detailed = self.publication.is_answered_in_detail
        body = _encode({"channels": results}) if is_detailed else OK
        position = view.next_committed_id + len(drafts) - 1 if drafts else 0
        accept.answer = PublishAnswer(tuple(live), body, position)
        if self._own_key is not None:
            remember(view, accept, self._own_key, body, self._ttl_ms)
        return self._finish(view, body if is_detailed else None, accept)

    def _finish(self, view: View, result: bytes | None, accept: Accept) -> Accept:
        if self._item_key is not None:
            remember(view, accept, self._item_key, result or NO_RESULT, self._ttl_ms)
        return self._context.finish(view, result, accept)

    def _proof(self, target: PublishTarget) -> bytes:
        wanted = self.publication
        return fingerprint(
            target.channel, wanted.name, wanted.data, wanted.extras, wanted.tags, self.client_id
        )

    def _not_own(self, view: View, target: PublishTarget) -> Fault | None:
        """Refuse to cancel a run that is known to be somebody else's.

        Of a run that is not known yet, whoever runs it decides.
        """
        if self._own_run is None:
            return None
        known = unexpired(view.dedupe(run_scope(target.stream), self._own_run), view.now_ms)
        if known is None or known.outcome.decode() == self.client_id:
            return None
        return fault.event_not_permitted(NOT_OWN)

    def _note_run(
        self, view: View, accept: Accept, target: PublishTarget, committed_id: int | None
    ) -> None:
        """Remember whose a run is, for as long as the event that began it is kept.

        An event that is not kept has no position; of that it is remembered for a day.
        """
        starts = self.publication.starts
        if starts is None:
            return
        key = (run_scope(target.stream), starts.run_id)
        if unexpired(view.dedupe(*key), view.now_ms) is None:
            owner = starts.client_id.encode()
            ttl_ms = LIVE_RUN_MS if committed_id is None else None
            remember(view, accept, key, owner, ttl_ms, committed_id=committed_id)

    def _over_limit(self, target: PublishTarget) -> Fault | None:
        is_stream = self.publication.transport_status == "streaming"
        if is_stream and target.versions_off and not self.publication.is_ephemeral:
            # Nothing could ever be appended, and nobody could end it.
            return fault.feature_disabled(target.channel, target.versions_off)
        if target.mode != "versioned" or not target.is_limited:
            return None
        if self.publication.data_bytes > self._limits.max_accumulated_message_bytes:
            return too_much_content(self._limits)
        assert target.state is not None  # noqa: S101 - what is stored has its channel's state
        if is_stream and target.state.open_streams >= (
            self._limits.max_open_streaming_messages_per_channel
        ):
            return too_many_streams(self._limits)
        return None

    def _stored(
        self, view: View, target: PublishTarget, committed_id: int
    ) -> tuple[Draft, list[RowChange], StateChange, dict[str, Any]]:
        wanted = self.publication
        state = target.state
        assert state is not None  # noqa: S101 - what is stored has its channel's state
        is_versioned = target.mode == "versioned"
        version = Version(
            message_id=target.message_id,
            history_serial=state.history_serial + 1,
            name=wanted.name,
            data=Raw(wanted.data),
            data_bytes=wanted.data_bytes,
            extras=UNSET if wanted.extras is None else Raw(wanted.extras),
            tags=UNSET if wanted.tags is None else Raw(wanted.tags),
            creator=self.client_id,
            client_id=self.attributed_to,
            opens=int(is_versioned and wanted.transport_status == "streaming"),
            socket_id=wanted.socket_id,
            is_client_event=self.is_client_event,
        )
        delivery_serial = view.serial(target.stream) + 1
        created = create(
            version,
            kind=CREATE if is_versioned else EVENT,
            stream=target.stream,
            actor=self.client_id or self._app_id,
            committed_id=committed_id,
            committed_at=view.now_ms,
            delivery_serial=delivery_serial,
            log_tag=self._tag,
        )
        outcome: dict[str, Any] = {"acknowledgement_id": target.message_id}
        if is_versioned:
            serial = created.draft.entity
            outcome = {
                "acknowledgement_id": serial,
                "message_serial": serial,
                "history_serial": version.history_serial,
                "delivery_serial": delivery_serial,
                "version_serial": serial,
            }
        change = Created(self._states, state, version)
        return created.draft, created.rows, change, outcome


class NewMessage(NamedTuple):
    """A message that begins."""

    draft: Draft
    rows: list[RowChange]


def create(
    version: Version,
    *,
    kind: str,
    stream: str,
    actor: str,
    committed_id: int,
    committed_at: int,
    delivery_serial: int,
    log_tag: str,
) -> NewMessage:
    """What a message that begins at a position leaves in the log and in the store.

    `version` is new: it gets its positions here.
    """
    serial = version_serial(log_tag, committed_at, committed_id)
    encoded = encode_body(version)
    placed(version, kind, committed_id, committed_at, delivery_serial, serial)
    row = (
        committed_id,
        stream,
        version.history_serial,
        committed_at,
        version.opens,
        version.data_bytes,
    )
    return NewMessage(
        Draft(stream, SURFACE, kind, serial, "", actor, encoded),
        [
            RowChange("channels_note_history", (stream, version.history_serial)),
            RowChange("channels_add_message", row),
            RowChange("channels_add_version", (committed_id, committed_id)),
        ],
    )


def too_much_content(limits: AiTransport) -> Fault:
    """413: the data of a message."""
    most = limits.max_accumulated_message_bytes
    setting = set_by("channels.ai_transport.max_accumulated_message_bytes")
    text = f"accumulated message content exceeds {most} bytes{setting}"
    return fault.payload_too_large(text, AI_LIMIT)


def too_many_appends(limits: AiTransport) -> Fault:
    """413: the appends to a message."""
    most = limits.max_appends_per_message
    setting = set_by("channels.ai_transport.max_appends_per_message")
    return fault.payload_too_large(f"message append count exceeds {most}{setting}", AI_LIMIT)


def too_many_streams(limits: AiTransport) -> Fault:
    """413: the open streams of a channel."""
    most = limits.max_open_streaming_messages_per_channel
    setting = set_by("channels.ai_transport.max_open_streaming_messages_per_channel")
    text = f"open streaming message count exceeds {most}{setting}"
    return fault.payload_too_large(text, AI_LIMIT)


class Mutate:
    """One change: the next version of a message (channels 5.6)."""

    __slots__ = (
        "_actor",
        "_author",
        "_channel",
        "_is_limited",
        "_message",
        "_message_id",
        "_op_key",
        "_row",
        "_terms",
        "_wanted",
    )

    def __init__(
        self,
        mutation: Mutation,
        channel: ChannelState,
        message: MessageState,
        *,
        author: str,
        actor: Actor | None,
        message_id: str,
        terms: Terms,
        is_limited: bool,
    ) -> None:
        self._wanted = mutation
        self._author = author
        """Whom the log names where the actor has no client id."""
        self._channel = channel
        self._message = message
        self._actor = actor
        """None for the application's own server, which may do anything."""
        self._message_id = message_id
        self._terms = terms
        self._is_limited = is_limited
        self._row: tuple[str, tuple[str, int]] | None = None
        if terms.is_shared:
            # Another node may have purged the message, and this one may not have heard of it yet.
            self._row = ("channels_exists", (channel.stream, message.number))
        self._op_key: tuple[str, str] | None = None
        if mutation.op_id is not None:
            scope = f"{channel.stream}/{mutation.message_serial}/{mutation.verb}"
            self._op_key = (scope, mutation.op_id)

    def names(self) -> Names:
        """What the decision reads."""
        return Names(
            () if self._op_key is None else (self._op_key,),
            (self._channel.stream,),
            () if self._row is None else (self._row,),
        )

    def decide(self, view: View) -> Accept | Refuse:
        """See `Item.decide`; the answer is a `MutationResult` or a `Fault`."""
        wanted, latest = self._wanted, self._message.latest
        is_gone = self._row is not None and not view.rows(*self._row)
        is_gone = is_gone or self._message.number <= self._channel.erased_through
        if is_gone or not self._message.exists:
            return Refuse(fault.not_found(wanted.message_serial, wanted.channel))
        client_id = wanted.client_id
        if self._actor is not None:
            if isinstance(granted := self._granted(self._actor, latest), Fault):
                return Refuse(granted)
            if self._is_limited and (found := self._not_for_clients(self._actor, latest)):
                return Refuse(found)
            client_id = granted
        if self._op_key is not None:
            known = view.dedupe(*self._op_key)
            if known is not None:
                return Refuse(self._replayed(known))
        size = self._size_after(latest)
        opens = self._opens(latest)
        if found := self._bad_metadata(latest) or self._over_limit(latest, size, opens):
            return Refuse(found)
        return self._accept(view, latest, client_id, size, opens)

    def _not_for_clients(self, actor: Actor, latest: Version) -> Fault | None:
        """Refuse what would let a socket say by a change what it may not publish (runs 4.4)."""
        wanted, name = self._wanted, latest.name or ""
        after = wanted.patch.name if isinstance(wanted.patch.name, str) else name
        if CANCEL in (name, latest.created_as):
            return fault.event_not_permitted("Not allowed to change an ai-cancel")
        if after != name and after.startswith(PREFIX):
            return fault.event_not_permitted(f"Not allowed to rename a message to {after}")
        if not (name.startswith(PREFIX) or latest.is_output):
            return None
        before = {} if isinstance(latest.extras, UnsetType) else transport_of(latest.extras)
        said = {key: text for key, text in wanted.transport.items() if before.get(key) != text}
        try:
            check_client_ids(name, said, actor.client_id)
        except Fault as refused:
            return refused
        return None

    def _bad_metadata(self, latest: Version) -> Fault | None:
        if not (self._is_limited and latest.is_output):
            return None
        try:
            check_metadata(self._wanted.transport, self._wanted.codec)
        except Fault as refused:
            return refused
        return None

    def _granted(self, actor: Actor, latest: Version) -> Fault | str | None:
        """Whom the version is attributed to, if the actor may do this."""
        wanted = self._wanted
        allowed = grant(wanted.verb, wanted.channel, actor, latest.creator)
        if isinstance(allowed, Denied):
            return fault.auth_failed(allowed.text)
        return actor.client_id if allowed.scope == "own" else wanted.client_id or actor.client_id

    def _proof(self) -> bytes:
        wanted = self._wanted
        fields = (wanted.patch.name, wanted.patch.data, wanted.patch.extras)
        changes: list[bytes | str | None] = []
        for change in fields:
            is_value = not isinstance(change, Change)
            changes += ["=", change] if is_value else [change.name.lower(), None]  # type: ignore[union-attr, list-item]
        actor = None if self._actor is None else self._actor.client_id
        return fingerprint(*changes, wanted.client_id, wanted.description, wanted.metadata, actor)

    def _replayed(self, known: DedupeRow) -> MutationResult | Fault:
        if known.fingerprint != self._proof():
            return fault.payload_conflict()
        return MutationResult(**_decode(known.outcome), is_duplicate=True)

    def _over_limit(self, latest: Version, size: int, opens: int) -> Fault | None:
        wanted, limits = self._wanted, self._terms.limits
        if wanted.verb == "append":
            if self._is_limited and latest.is_terminal:
                return fault.invalid_input("cannot append to a terminal message")
            if self._is_limited and latest.appends >= limits.max_appends_per_message:
                return too_many_appends(limits)
            if self._message.has_data and not self._message.is_text:
                return fault.invalid_input(
                    "append requires string message data; replace the data by an update first"
                )
        if not self._is_limited:
            return None
        if wanted.verb != "delete" and size > limits.max_accumulated_message_bytes:
            return too_much_content(limits)
        if opens > 0 and self._channel.open_streams >= (
            limits.max_open_streaming_messages_per_channel
        ):
            return too_many_streams(limits)
        return None

    def _size_after(self, latest: Version) -> int:
        data = self._wanted.patch.data
        if data is Change.KEEP:
            return latest.data_bytes
        if data is Change.CLEAR:
            return 0
        before = latest.data_bytes if self._wanted.verb == "append" else 0
        return before + self._wanted.data_bytes

    def _opens(self, latest: Version) -> int:
        """1 if the message becomes an open stream, -1 if it ceases to be one."""
        if self._wanted.patch.extras is Change.KEEP:
            return 0
        return int(self._wanted.transport_status == "streaming") - int(latest.is_open)

    def _next(self, latest: Version, client_id: str | None, size: int, opens: int) -> Version:
        """The version that this makes, without its positions."""
        wanted = self._wanted
        patch = wanted.patch
        version = Version(
            message_id=self._message_id,
            history_serial=latest.history_serial,
            name=latest.name,
            data=Raw(patch.data) if isinstance(patch.data, bytes) else UNSET,
            data_bytes=size,
            extras=(
                Raw(patch.extras)
                if isinstance(patch.extras, bytes)
                else _after(patch.extras, latest.extras, UNSET)
            ),
            created_as=latest.created_as,
            creator=latest.creator,
            client_id=client_id,
            description=wanted.description,
            metadata=UNSET if wanted.metadata is None else Raw(wanted.metadata),
            opens=opens,
            op_id=wanted.op_id,
        )
        if wanted.verb != "append":  # which adds data, and perhaps other extras
            changes = (("name", patch.name), ("data", patch.data), ("extras", patch.extras))
            version.name = _after(patch.name, latest.name, None)
            version.created_as = _created_as(patch.name, latest)
            version.kept = tuple([n for n, c in changes if c is Change.KEEP])
            version.cleared = tuple([n for n, c in changes if c is Change.CLEAR])
        if patch.data is Change.KEEP and self._message.has_data:
            version.data_of = origin_of(latest) or self._message.number
        return version

    def _accept(
        self, view: View, latest: Version, client_id: str | None, size: int, opens: int
    ) -> Accept:
        message, stream = self._message, self._channel.stream
        kind = kind_of(self._wanted.verb)
        committed_id = view.next_committed_id
        delivery_serial = view.serial(stream) + 1
        version = self._next(latest, client_id, size, opens)
        body = encode_body(version)
        placed(version, kind, committed_id, view.now_ms, delivery_serial, latest.message_serial)
        is_folded = message.is_fold_due(version)
        rows = [RowChange("channels_add_version", (message.number, committed_id))]
        if is_folded:
            rows.append(fold_change(message.number, message.after(version)))
        elif version.opens:
            is_open = int(version.opens > 0)
            rows.append(RowChange("channels_fold", (message.number, is_open, None, None, None)))
        result = MutationResult(
            version_serial(self._terms.log_tag, view.now_ms, committed_id),
            latest.history_serial,
            delivery_serial,
        )
        accept = Accept(
            result,
            entries=(
                Draft(
                    stream,
                    SURFACE,
                    kind,
                    latest.message_serial,
                    "",
                    self._actor_name(),
                    body,
                ),
            ),
            rows=tuple(rows),
            states=(Changed(self._channel, message, version, is_folded=is_folded),),
        )
        if self._op_key is not None:
            outcome = {
                "version_serial": result.version_serial,
                "history_serial": result.history_serial,
                "delivery_serial": result.delivery_serial,
            }
            remember(
                view,
                accept,
                self._op_key,
                _encode(outcome),
                None,
                committed_id=committed_id,
                proof=self._proof(),
            )
        return accept

    def _actor_name(self) -> str:
        client_id = None if self._actor is None else self._actor.client_id
        return client_id or self._author


def _created_as(name: Change | str, latest: Version) -> str | None:
    """What a message was created as, if a change of its name would hide it."""
    is_kept = name is Change.KEEP or name == latest.name
    return latest.name if latest.created_as is None and not is_kept else latest.created_as


def _after(change: Any, before: Any, nothing: Any) -> Any:
    """A field after a change that keeps, clears or replaces it."""
    if change is Change.KEEP:
        return before
    return nothing if change is Change.CLEAR else change


def fold_change(number: int, after: Version) -> RowChange:
    """Store a message's state up to its latest version."""
    return RowChange(
        "channels_fold",
        (
            number,
            int(after.is_open),
            after.data_bytes,
            after.committed_id,
            encode_version(after),
        ),
    )
