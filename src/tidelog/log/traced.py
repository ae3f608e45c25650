"""A committer that tells OpenTelemetry what it does; used only where tracing is enabled.

A subclass and not a hook, so that the committer of everybody else does not even ask. What leaves
here is how long things took, how many there were and their positions in the log: never a body, an
actor, a stream's name or a key.
"""

from collections.abc import Sequence

from opentelemetry.trace import Link, Span, StatusCode, get_tracer, set_span_in_context

from tidelog.base.clock import ServerClock
from tidelog.base.data.incarnation import Incarnations
from tidelog.base.errors import TidelogError
from tidelog.base.metrics import Metrics
from tidelog.base.quiet_span import quiet_span
from tidelog.base.settings.limits import Limits
from tidelog.log.committer import Committer, _Decided
from tidelog.log.decision import Answer, Failure, Item, Request, View
from tidelog.log.tail import Tail
from tidelog.store.engine import Store
from tidelog.store.rows import Effects, Entry

FIRST, LAST, ENTRIES = "tidelog.committed_id.first", "tidelog.committed_id", "tidelog.entries"


class TracedCommitter(Committer):
    """Spans of a write, within the trace of whoever asked for it.

    `append` from submitting to the answer; under the first request of a batch `batch` with
    `decide`, `commit` and `fan_out`. The other requests of the batch and the batch link each other.
    """

    def __init__(
        self,
        store: Store,
        clock: ServerClock,
        metrics: Metrics,
        limits: Limits,
        tail: Tail,
        incarnations: Incarnations,
    ) -> None:
        super().__init__(store, clock, metrics, limits, tail, incarnations)
        self._tracer = get_tracer("tidelog")
        self._appends: dict[int, Span] = {}
        """By identity of the request, until it is answered."""

    def submit(self, request: Request) -> None:
        """See `Committer.submit`."""
        append = self._tracer.start_span("tidelog.append")
        try:
            super().submit(request)
        except TidelogError as error:
            append.set_status(StatusCode.ERROR, type(error).__name__)
            append.end()
            raise
        if append.is_recording():
            self._appends[id(request)] = append

    async def _commit(self, batch: list[Request]) -> None:
        appends = [span for each in batch if (span := self._appends.get(id(each))) is not None]
        if not appends:
            await super()._commit(batch)
            return
        first, *others = appends
        with quiet_span(
            self._tracer,
            "tidelog.batch",
            context=set_span_in_context(first),
            links=[Link(span.get_span_context()) for span in others],
            attributes={"tidelog.requests": len(batch)},
        ) as span:
            for other in others:
                other.add_link(span.get_span_context())
            await super()._commit(batch)

    def _decide_all(
        self, batch: list[tuple[Request, Sequence[Item]]], view: View
    ) -> list[_Decided]:
        with quiet_span(self._tracer, "tidelog.decide"):
            return super()._decide_all(batch, view)

    async def _write(self, effects: Effects) -> None:
        with quiet_span(self._tracer, "tidelog.commit") as span:
            await super()._write(effects)
            span.set_attribute(LAST, effects.committed_id)
            span.set_attribute(ENTRIES, len(effects.entries))

    async def _hand_over(self, decided: list[_Decided]) -> None:
        for request, _, entries in decided:
            append = self._appends.get(id(request))
            if append is not None:
                _place(append, entries)
        with quiet_span(self._tracer, "tidelog.fan_out") as span:
            _place(span, [entry for each in decided for entry in each.entries])
            await super()._hand_over(decided)

    def _answer(self, request: Request, answers: Sequence[Answer | Failure]) -> None:
        super()._answer(request, answers)
        append = self._appends.pop(id(request), None)
        if append is not None:
            for answer in answers:
                if isinstance(answer, Failure):
                    append.set_status(StatusCode.ERROR, type(answer.error).__name__)
                    break
            append.end()


def _place(span: Span, entries: Sequence[Entry]) -> None:
    """Where the entries are; nothing of none, as of a request whose items went one by one."""
    if entries:
        span.set_attribute(ENTRIES, len(entries))
        span.set_attribute(FIRST, entries[0].committed_id)
        span.set_attribute(LAST, entries[-1].committed_id)
