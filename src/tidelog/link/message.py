"""What crosses a link: structs that mean the same in another process, and errors as such."""

from typing import Any, NamedTuple

from msgspec import Struct

from tidelog.base import errors
from tidelog.base.errors import TidelogError


class Message(Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages: encoded as an array that begins with the name of its class."""

    @property
    def may_repeat(self) -> bool:
        """Whether a question may be asked twice, because it is done once under its client's key."""
        return False


class Vocabulary(NamedTuple):
    """Everything that the two halves of a surface say to each other, each a union of messages."""

    to_owner: Any
    to_front: Any


class Failed(Message, frozen=True):
    """In place of an answer: what was asked for could not be done."""

    error: str
    """Name of a class of `tidelog.base.errors`."""
    text: str

    def raised(self) -> TidelogError:
        """The error, for whoever asked."""
        return _KNOWN.get(self.error, TidelogError)(self.text)


class NotSent(Failed, frozen=True):
    """What the front's end answers itself if a question cannot be sent: nothing was done."""


class NotAsked(Failed, frozen=True):
    """What it answers itself once it asks no more, because the front ends: nothing was done."""


_KNOWN: dict[str, type[TidelogError]] = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, TidelogError)
}


def error_name(error: TidelogError) -> str:
    """What a `Failed` calls an error: the nearest of its classes that both processes know."""
    return next(each.__name__ for each in type(error).__mro__ if each.__name__ in _KNOWN)
