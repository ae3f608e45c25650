"""The stateless steps of a submitted item, and what is remembered of them."""

import gc
import tracemalloc

from tidelog.sync.protocol.items import PreparedItem, prepare
from tidelog.sync.protocol.partitions import MAX_PARTITIONS
from tidelog.sync.protocol.profiles import CANONICAL, Model

MODEL = Model({}, {}, 1, (CANONICAL,))


def prepared(*names: str) -> PreparedItem:
    """An item for these partitions."""
    event = {"type": "event", "payload": {"schema": "s", "data": {}}}
    item = {"id": "i", "partitions": list(names), "event": event}
    return prepare(
        item, b"{}", client_id="c", profile=CANONICAL, model=MODEL, allows=lambda name: True
    )


def test_many_names_are_not_remembered() -> None:
    """Whatever a client sends: long ones, faulty ones, the same one thousands of times."""
    sets = [(*[f"p{number}"] * 5000, "x" * 100_000, *[""] * 1000) for number in range(20)]
    gc.collect()
    tracemalloc.start()
    try:
        for names in sets:
            assert prepared(*names).refused is not None
            assert prepared(*names[:5000]).partitions == names[:1]
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000


def test_a_set_that_is_remembered_is_what_it_was() -> None:
    """Also its faults; as many as are allowed, and one more."""
    names = [f"p{number:03}" for number in range(MAX_PARTITIONS)]
    for _ in range(2):
        assert prepared("b", "a", "b").partitions == ("a", "b")
        assert prepared(*names).partitions == tuple(names)
        for wrong in (["p", ""], [*names, "q"], []):
            assert prepared(*wrong).refused is not None
