"""What is too much for one message, in several."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def parts(items: Sequence[T], size: Callable[[T], int], most: int) -> Iterator[Sequence[T]]:
    """Runs of the items, each as long as its sizes have room in `most`; one item always has."""
    start = held = 0
    for place, item in enumerate(items):
        held += size(item)
        if held > most and place > start:
            yield items[start:place]
            start, held = place, size(item)
    if items:
        yield items[start:]
