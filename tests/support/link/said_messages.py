"""Whether the messages that a surface declares survive a link."""

from collections.abc import Iterable
from types import ModuleType
from typing import get_args

import msgspec

from tidelog.link.message import Message, Vocabulary


def comes_as_said(message: Message, vocabulary: Vocabulary) -> None:
    """It is said in one direction, and is the same on the other side."""
    kinds = [kind for kind in vocabulary if type(message) in get_args(kind)]
    assert len(kinds) == 1, "it is said in one direction"
    came = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kinds[0])
    assert (type(came), came) == (type(message), message)


def all_have_examples(
    module: ModuleType, vocabulary: Vocabulary, examples: Iterable[Message]
) -> None:
    """Each message that the module declares has a direction, and an example."""
    declared = {
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Message) and each is not Message
    }
    known = {*get_args(vocabulary.to_owner), *get_args(vocabulary.to_front)}
    assert declared == known == {type(each) for each in examples}
