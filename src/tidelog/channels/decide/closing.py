"""Ending a stream that its writer has left: a pure decision of the server (channels 5.12).

With the last open message of a run the run ends too (runs 7), in the same commit: so it does once,
whatever dies meanwhile and however many nodes look.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Raw, Struct, UnsetType

from tidelog.channels.decide.rules import Mutate, Terms, create
from tidelog.channels.decide.state import ChannelState, Created, MessageState, StateCache
from tidelog.channels.protocol.extras import transport_of, with_transport
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.names import split_stream
from tidelog.channels.protocol.requests import Mutation, Patch
from tidelog.channels.protocol.runs import RUN_END
from tidelog.channels.protocol.verbs import CREATE, DELETE
from tidelog.channels.protocol.version import Version
from tidelog.log.decision import Accept, Names, Refuse, View

SERVER = "server"
"""The actor in the log of what the server writes by itself."""

Reason = Literal["orphan_timeout", "closed_by_operator"]
"""Why the server ends a stream: the `error-code` that readers find."""

NO_DATA = b'"null"'
"""Data of an event that has none, as a publish without data has it."""


def run_of(message: Version) -> str | None:
    """The run that a message belongs to, if it is what an agent says in one."""
    if not message.is_output or isinstance(message.extras, UnsetType):
        return None
    return transport_of(message.extras).get("run-id")


class Unsure(Struct, frozen=True):
    """Whether the run goes on cannot be told yet, so nothing was ended."""

    messages: tuple[int, ...]
    """Open messages whose run has to be looked up; empty if a stream began in this very batch, of
    which the next one tells."""


class CloseStream:
    """The version that ends a stream, if nothing was written for long enough.

    It changes the status and the error code within the message's own extras and nothing else. A
    writer that appends meanwhile, or another node that ends the stream, is decided before or after
    this, and whichever comes second finds nothing to do.
    """

    def __init__(
        self,
        *,
        channel: ChannelState,
        message: MessageState,
        states: StateCache,
        runs: Mapping[int, str | None],
        message_ids: tuple[str, str],
        terms: Terms,
        silent_ms: int,
        reason: Reason,
        is_last_try: bool = False,
    ) -> None:
        """`runs`: to which run the open messages of the channel belong, as far as it is known."""
        self._channel = channel
        self._message = message
        self._states = states
        self._runs = runs
        self._message_id, self._end_id = message_ids
        self._terms = terms
        self._silent_ms = silent_ms
        self._reason = reason
        self._is_last_try = is_last_try
        latest = message.latest
        self._run_id = run_of(latest) if reason == "orphan_timeout" else None
        self._open = ("channels_open_messages", (channel.stream,))

    def names(self) -> Names:
        """What the decision reads."""
        names = self._next_version(Patch()).names()
        if self._run_id is not None:
            names.rows = (*names.rows, self._open)
        return names

    def decide(self, view: View) -> Accept | Refuse:
        """See `Item.decide`; the answer is a `MutationResult`, or None if nothing is to end.

        It is `Unsure` if nothing was ended yet for want of knowledge.
        """
        latest = self._message.latest
        is_silent = view.now_ms - latest.committed_at >= self._silent_ms
        if isinstance(latest.extras, UnsetType) or not (latest.is_open and is_silent):
            return Refuse(None)
        others: list[int] = []
        if self._run_id is not None:
            others = self._others(view)
            unknown = tuple(number for number in others if number not in self._runs)
            if unknown or (self._channel.open_streams > len(others) + 1 and not self._is_last_try):
                return Refuse(Unsure(unknown))
        ended = with_transport(latest.extras, status="cancelled", error_code=self._reason)
        decision = self._next_version(Patch(extras=ended)).decide(view)
        if isinstance(decision, Refuse):
            return Refuse(None) if isinstance(decision.answer, Fault) else decision
        if self._run_id is not None and not any(
            self._runs[number] == self._run_id for number in others
        ):
            self._end_run(view, decision, latest)
        return decision

    def _others(self, view: View) -> list[int]:
        """The other open messages of the channel, after what this batch has decided."""
        found = []
        for (number,) in view.rows(*self._open):
            cached = self._states.peek(number)
            is_open = cached is None or cached.latest.is_open
            if number != self._message.number and is_open:
                found.append(number)
        return found

    def _end_run(self, view: View, decision: Accept, latest: Version) -> None:
        """Let `ai-run-end` follow the version that a decision makes."""
        stream = self._channel.stream
        said = {} if isinstance(latest.extras, UnsetType) else transport_of(latest.extras)
        extras = with_transport(
            None,
            run_id=self._run_id,
            run_client_id=said.get("run-client-id"),
            invocation_id=said.get("invocation-id"),
            run_reason="error",
            error_code=self._reason,
        )
        entries = len(decision.entries)
        ended = Version(
            message_id=self._end_id,
            history_serial=self._channel.history_serial + 1,
            name=RUN_END,
            data=Raw(NO_DATA),
            data_bytes=len(NO_DATA) - 2,
            extras=Raw(extras),
        )
        created = create(
            ended,
            kind=CREATE,
            stream=stream,
            actor=SERVER,
            committed_id=view.next_committed_id + entries,
            committed_at=view.now_ms,
            delivery_serial=view.serial(stream) + entries + 1,
            log_tag=self._terms.log_tag,
        )
        decision.entries = (*decision.entries, created.draft)
        decision.rows = (*decision.rows, *created.rows)
        change = Created(self._states, self._channel, ended)
        decision.states = (*decision.states, change)

    def _next_version(self, patch: Patch) -> Mutate:
        stream, latest = self._channel.stream, self._message.latest
        return Mutate(
            Mutation(
                # An update would show a deleted message again.
                verb="delete" if latest.kind == DELETE else "update",
                channel=split_stream(stream)[1],
                message_serial=latest.message_serial,
                patch=patch,
                transport={"status": "cancelled"},
                ends_stream=True,
            ),
            self._channel,
            self._message,
            author=SERVER,
            actor=None,
            message_id=self._message_id,
            terms=self._terms,
            # The message may be larger than it may be now, and must end all the same.
            is_limited=False,
        )
