"""Ending a stream that its writer has left: a pure decision of the server (channels 5.12)."""

from typing import Literal

from msgspec import UnsetType

from tidelog.channels.decide.rules import Mutate
from tidelog.channels.decide.state import ChannelState, MessageState
from tidelog.channels.protocol.extras import with_transport
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.names import split_stream
from tidelog.channels.protocol.requests import Mutation, Patch
from tidelog.channels.protocol.verbs import DELETE
from tidelog.channels.settings import AiTransport
from tidelog.log.decision import Accept, Names, Refuse, View

SERVER = "server"
"""The actor in the log of what the server writes by itself."""

Reason = Literal["orphan_timeout", "closed_by_operator"]
"""Why the server ends a stream: the `error-code` that readers find."""


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
        message_id: str,
        log_tag: str,
        limits: AiTransport,
        is_shared: bool,
        silent_ms: int,
        reason: Reason,
    ) -> None:
        self._channel = channel
        self._message = message
        self._message_id = message_id
        self._tag = log_tag
        self._limits = limits
        self._is_shared = is_shared
        self._silent_ms = silent_ms
        self._reason = reason

    def names(self) -> Names:
        """What the decision reads."""
        return self._next_version(Patch()).names()

    def decide(self, view: View) -> Accept | Refuse:
        """See `Item.decide`; the answer is a `MutationResult`, or None if nothing is to end."""
        latest = self._message.latest
        is_silent = view.now_ms - latest.committed_at >= self._silent_ms
        if isinstance(latest.extras, UnsetType) or not (latest.is_open and is_silent):
            return Refuse(None)
        ended = with_transport(latest.extras, status="cancelled", error_code=self._reason)
        decision = self._next_version(Patch(extras=ended)).decide(view)
        return Refuse(None) if isinstance(decision.answer, Fault) else decision

    def _next_version(self, patch: Patch) -> Mutate:
        stream, latest = self._channel.stream, self._message.latest
        return Mutate(
            Mutation(
                # An update would show a deleted message again.
                verb="delete" if latest.kind == DELETE else "update",
                channel=split_stream(stream)[1],
                message_serial=latest.message_serial,
                patch=patch,
                transport_status="cancelled",
                ends_stream=True,
            ),
            author=SERVER,
            stream=stream,
            channel=self._channel,
            message=self._message,
            actor=None,
            message_id=self._message_id,
            log_tag=self._tag,
            limits=self._limits,
            # The message may be larger than it may be now, and must end all the same.
            is_limited=False,
            is_shared=self._is_shared,
        )
