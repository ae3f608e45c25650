"""What the decisions of a request share, without a server."""

import json

from tidelog.channels.decide.rules import PublishAnswer, PublishContext
from tidelog.log.decision import Accept, View
from tidelog.store.rows import Head, Loaded


def test_an_item_that_is_decided_again_counts_once() -> None:
    """When another node came between: neither its result nor its refusal is of any account."""
    view = View(Loaded(Head(0, b"", 0, "log", "first"), [], {}, {}, {}), 1)
    context = PublishContext(count=3, is_batch=True, key=None, ttl_ms=1)
    accept = Accept(None)
    for index, result in ((0, b"0"), (1, b"5"), (1, b"1"), (2, None), (2, b"2")):
        context.begin(view, index)
        assert not context.has_failed
        if result is None:
            context.fail(index)
        else:
            accept = context.finish(view, result, Accept(PublishAnswer()))
    assert json.loads(accept.answer.body) == {"batch": [0, 1, 2]}
    context.fail(1)
    context.begin(view, 2)
    assert context.has_failed, "one before it was refused"
