"""What a server said when it refused a request, for people and for programs."""

import json
import urllib.error

from tidelog.base.errors import TidelogError
from tidelog.base.terminal import printable

_MOST_BYTES = 10_000
_MOST_SHOWN = 300


class ServerRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """A server has responded, and not with what was asked for."""

    def __init__(self, text: str, status: int, body: str) -> None:
        super().__init__(text)
        self.status = status
        self.body = body
        """As the server sent it: JSON, unless something else than tidelog responds there."""


def read_body(error: urllib.error.HTTPError) -> str:
    """The body of a refusal; the connection ends with it."""
    with error:
        return error.read(_MOST_BYTES).decode("utf-8", "replace")


def refused(base: str, error: urllib.error.HTTPError, body: str, advice: str) -> ServerRefused:
    """The error that tells a person what a server refused, and what to do next."""
    text = f"{base} returned {error.code}: {in_words(body).rstrip('.')}. {advice}".rstrip()
    return ServerRefused(text, error.code, body)


def in_words(body: str) -> str:
    """The error and its detail; the body itself, shortened, where it has none."""
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    members = said if isinstance(said, dict) else {}
    words = [members[name] for name in ("error", "detail") if isinstance(members.get(name), str)]
    return printable((": ".join(words) or body)[:_MOST_SHOWN])
