"""One decision that a front asked for, on its way through the committer's queue."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tidelog.link.ends import failed
from tidelog.link.message import Message
from tidelog.log.decision import Answer, Failure, Item, Names

Tell = Callable[[Message], None]
"""Takes the answer to a question."""


class NamedItem(Item, Protocol):
    """A decision that knows what it reads."""

    def names(self) -> Names:
        """What its decision reads."""


class Question:
    """A `Request` of one item, whose answer is told to whoever asked."""

    __slots__ = ("_answer_of", "_item", "_tell", "names", "size_bytes", "waits_for_entries")

    def __init__(
        self,
        item: NamedItem,
        tell: Tell,
        answer_of: Callable[[Any], Message],
        size_bytes: int,
        *,
        waits_for_entries: bool = False,
    ) -> None:
        """`answer_of` makes a message of what the decision returned, after what must come first."""
        self.waits_for_entries = waits_for_entries
        self.names = item.names()
        self.size_bytes = size_bytes
        self._item = item
        self._tell = tell
        self._answer_of = answer_of

    def items(self) -> Sequence[Item]:
        """See `Request.items`."""
        return (self._item,)

    def hand_over(self, answers: Sequence[Answer | Failure]) -> None:
        """See `Request.hand_over`."""
        [answer] = answers
        try:
            told = failed(answer.error) if isinstance(answer, Failure) else self._answer_of(answer)
        except Exception as error:  # noqa: BLE001 - whoever asked must not wait for ever
            told = failed(error)
        self._tell(told)
