"""The committer that traces: it commits as the other does, and ends every span it began."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from support.log.nodes import Node, joined, put_item, running_node
from tidelog.base.errors import QueueFull
from tidelog.base.settings.limits import Limits
from tidelog.log.traced import LAST, TracedCommitter

POISON = 2**63
"""A weight that no engine can store."""


class Traced:
    """A node, and the spans that have ended."""

    def __init__(self, node: Node, ended: InMemorySpanExporter) -> None:
        self.node = node
        self._ended = ended

    @property
    def committer(self) -> TracedCommitter:
        """The node's."""
        assert isinstance(self.node.committer, TracedCommitter)
        return self.node.committer

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of a name, in the order of their beginning."""
        spans = [span for span in self._ended.get_finished_spans() if span.name == name]
        return sorted(spans, key=lambda span: span.start_time or 0)


@asynccontextmanager
async def traced(location: str, limits: Limits | None = None) -> AsyncIterator[Traced]:
    """A node whose committer traces into memory; no span is left when the block ends."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with running_node(location, limits=limits, committer_class=TracedCommitter) as node:
        made = Traced(node, exporter)
        made.committer._tracer = provider.get_tracer("test")
        yield made
        assert made.committer._appends == {}


def error_of(span: ReadableSpan) -> str | None:
    """Kind of the error a span ended with."""
    return span.status.description if span.status.status_code is StatusCode.ERROR else None


async def test_a_poison_request_ends_its_own_span_with_an_error(tmp_path: Path) -> None:
    """The neighbours have their places in the log; nothing of the refused value is in a span."""
    async with traced(str(tmp_path / "tidelog.db")) as here:
        items = [
            put_item("s", key, weight=POISON if key == "poison" else 1)
            for key in ("a", "poison", "b")
        ]
        await here.node.put_many(items)
        found = [
            (error_of(span), (span.attributes or {}).get(LAST))
            for span in here.named("tidelog.append")
        ]
        assert found == [(None, 1), ("DataError", None), (None, 2)]
        assert len(here.named("tidelog.batch")) > 1, "halves of the batch are batches"
        for name in ("batch", "decide", "commit", "fan_out", "append"):
            for span in here.named(f"tidelog.{name}"):
                assert span.events == ()
                assert str(POISON) not in span.to_json()


async def test_items_that_went_one_by_one_claim_no_place(tmp_path: Path) -> None:
    """A request of which a part was committed ends with an error; its commits have the places."""
    async with traced(str(tmp_path / "tidelog.db")) as here:
        items = [put_item("s", "a"), put_item("s", "poison", weight=POISON)]
        await asyncio.wrap_future(here.node.submit(items, joined(items)))
        [append] = here.named("tidelog.append")
        assert (error_of(append), append.attributes) == ("DataError", {})
        places = [(span.attributes or {}).get(LAST) for span in here.named("tidelog.commit")]
        assert 1 in places


async def test_a_request_that_is_not_taken_ends_its_span(tmp_path: Path) -> None:
    """A full queue is an error of the span, whose place nobody waits for."""
    async with traced(str(tmp_path / "tidelog.db"), Limits(commit_queue_requests=1)) as here:
        item, other = put_item("s", "a"), put_item("s", "b")
        waiting = here.node.submit((item,), item.names())
        with pytest.raises(QueueFull):
            here.node.submit((other,), other.names())
        await asyncio.wrap_future(waiting)
        assert [error_of(span) for span in here.named("tidelog.append")] == [None, "QueueFull"]
