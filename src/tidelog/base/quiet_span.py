"""Spans that tell nobody what was sent; imported only where tracing is enabled."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import Span, StatusCode, Tracer


@contextmanager
def quiet_span(tracer: Tracer, name: str, **options: Any) -> Iterator[Span]:
    """A span that keeps only the kind of an error: an error's text may quote what was sent."""
    with tracer.start_as_current_span(
        name, record_exception=False, set_status_on_exception=False, **options
    ) as span:
        try:
            yield span
        except Exception as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise
