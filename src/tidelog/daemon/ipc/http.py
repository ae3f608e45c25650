"""Requests and responses of the IPC as values."""

from http.client import responses
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tidelog.daemon.ipc.events import Port

Transport = Literal["unix", "tcp"]

_COMMON = "cache-control: no-store\r\nx-content-type-options: nosniff\r\n"


class Request(Struct, kw_only=True):
    """One request; `body` is filled in when it has arrived."""

    method: str
    path: str
    query_string: str
    headers: list[tuple[str, str]]
    """Lower-case names."""
    transport: Transport
    body: bytes = b""

    def values(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key == name]

    def query(self) -> dict[str, str]:
        """The query's parameters; the last of equal ones counts."""
        return dict(parse_qsl(self.query_string, keep_blank_values=True))


class Response(Struct, frozen=True):
    """One answer."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"

    def encode(self, *, closing: bool) -> bytes:
        """The bytes on the wire."""
        extra = "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        end = "connection: close\r\n" if closing else ""
        reason = responses.get(self.status, "")
        head = (
            f"HTTP/1.1 {self.status} {reason}\r\ncontent-type: {self.content_type}\r\n"
            f"content-length: {len(self.body)}\r\n{_COMMON}{extra}{end}\r\n"
        )
        return head.encode("latin-1") + self.body


class Stream(Struct, frozen=True):
    """A response without an end, fed by `serve` until the reader is gone."""

    serve: "Callable[[Port], Awaitable[None]]"
    content_type: str = "text/event-stream"

    def head(self) -> bytes:
        """The bytes before the first event."""
        return (
            f"HTTP/1.1 200 OK\r\ncontent-type: {self.content_type}\r\n{_COMMON}"
            "connection: close\r\n\r\n"
        ).encode("latin-1")


def answer(status: int, body: Any, *headers: tuple[str, str]) -> Response:
    """A JSON answer."""
    return Response(status, msgspec.json.encode(body), headers)


def refuse(status: int, error: str, detail: str, *headers: tuple[str, str]) -> Response:
    """An error answer."""
    return answer(status, {"error": error, "detail": detail}, *headers)
