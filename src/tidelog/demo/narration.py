"""What the tour tells whoever watches it, and what it proves on the way."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol


class Claim(NamedTuple):
    """Something the tour promised and then looked up."""

    promise: str
    seen: object
    expected: object

    @property
    def holds(self) -> bool:
        """Whether what was seen is what was promised."""
        return self.seen == self.expected


class Narrator(Protocol):
    """Shows the tour; the tour itself prints nothing."""

    def act(self, title: str, promise: str) -> None:
        """A new part begins."""

    def say(self, text: str) -> None:
        """One thing that happens."""

    def show(self, panes: Mapping[str, str]) -> None:
        """What each onlooker sees at this moment, by its name."""

    def busy(self, text: str) -> AbstractContextManager[None]:
        """Something takes a while."""

    def proved(self, claim: Claim) -> None:
        """Something was looked up."""
