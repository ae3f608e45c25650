"""Kinds of settings: numbers and text with their ranges, secrets that are never shown, sections."""

import re
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

from msgspec import Meta, Struct

_HIDDEN = "********"
_URL_PASSWORD = re.compile(r"(?<=://)([^:/?#]*):.*@", re.DOTALL)
_QUERY_PASSWORD = re.compile(r"(?<=password=)[^&#]*", re.IGNORECASE)


def _hide(value: str) -> str:
    return value and _HIDDEN


def _hide_password(value: str) -> str:
    """Hides too much rather than too little when the URL is malformed."""
    if "://" not in value:
        return value
    return _QUERY_PASSWORD.sub(_HIDDEN, _URL_PASSWORD.sub(rf"\1:{_HIDDEN}@", value))


Secret = Annotated[str, Meta(extra={"mask": _hide})]
"""Text that is never shown: `tidelog config check`, logs and `repr` show stars."""

SecretUrl = Annotated[str, Meta(extra={"mask": _hide_password})]
"""Text of which everything but a URL's password may be shown."""

Bytes = Annotated[int, Meta(ge=1, le=2**40)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
"""At most a day: a longer timeout is a unit mistaken for another."""

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
"""Where a contract counts in seconds; at most a day, like `Milliseconds`."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
"""What can stand in a path, an auth string and the name of a stream without any escaping."""


def one_by_one(given: list[str] | str) -> tuple[str, ...]:
    """A list that may also be text with commas, as a variable has it."""
    each_one = given.split(",") if isinstance(given, str) else given
    return tuple(each.strip() for each in each_one if each.strip())


def mask_of(kind: Any) -> Callable[[str], str] | None:
    """How to show a value of a field declared with type `kind`, or `None` if it is no secret."""
    for meta in getattr(kind, "__metadata__", ()):
        if isinstance(meta, Meta) and meta.extra and "mask" in meta.extra:
            mask: Callable[[str], str] = meta.extra["mask"]
            return mask
    return None


def masked(kind: Any, value: Any) -> Any:
    """`value` as it may be shown, where `kind` is the type its field is declared with."""
    mask = mask_of(kind)
    return mask(value) if mask else value


class Section(Struct, frozen=True, kw_only=True):
    """A group of settings. Its `repr` may be logged: it masks what is declared secret."""

    def __repr__(self) -> str:
        kinds = get_type_hints(type(self), include_extras=True)
        shown = (f"{name}={masked(kind, getattr(self, name))!r}" for name, kind in kinds.items())
        return f"{type(self).__name__}({', '.join(shown)})"
