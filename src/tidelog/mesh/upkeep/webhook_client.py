"""One POST to somebody else's server, with everything bounded: time, bytes and where it may go.

The address is looked up here and connected to as it was found: a name that changes its meaning
between a check and a connection would lead the server into its own network.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import httptools

from tidelog.base.errors import TidelogError
from tidelog.base.net.tls import context_for

MAX_HEAD_BYTES = 65_536
"""Of an answer only the status counts; a peer that sends more in front of its body has failed."""

_READ_BYTES = 8192

_EMBEDDING = (
    ipaddress.ip_network("64:ff9b::/96"),
    ipaddress.ip_network("64:ff9b:1::/48"),
    ipaddress.ip_network("::/96"),
)
"""IPv6 networks whose addresses end in an IPv4 address that a gateway may lead to."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PostFailed(TidelogError):  # noqa: N818 - the failure is the noun
    """There was no answer; `code` says why, in a word that is safe to store."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class _Target(NamedTuple):
    host: str
    port: int
    netloc: str
    path: str


def is_public(address: Address) -> bool:
    """Whether an address is one that anybody can reach, however it is written."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address.teredo is not None:
            return False
        if inner is None and any(address in network for network in _EMBEDDING):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


async def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    timeout_s: float,
    may_be_private: bool,
) -> int:
    """POST and answer the status; redirections are statuses like any other.

    Raises:
        PostFailed: there was no answer.
    """
    try:
        target = _target(url)
        async with asyncio.timeout(timeout_s):
            address = await _address(target, may_be_private=may_be_private)
            context = await context_for(url)
            return await _exchange(target, address, context, headers, body)
    except TimeoutError:
        raise PostFailed("timeout") from None
    except ssl.SSLError:
        raise PostFailed("tls_failed") from None
    except (OSError, UnicodeError, ValueError):
        raise PostFailed("connection_failed") from None


def _target(url: str) -> _Target:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise PostFailed("url_invalid")
    host = parts.hostname
    if ":" not in host:
        host = host.encode("idna").decode("ascii")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    shown = f"[{host}]" if ":" in host else host
    netloc = shown if parts.port is None else f"{shown}:{port}"
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        path += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
    return _Target(host, port, netloc, path)


async def _address(target: _Target, *, may_be_private: bool) -> str:
    """The first address of the host; all of them must be public unless others are allowed."""
    found = await asyncio.get_running_loop().getaddrinfo(
        target.host, target.port, type=socket.SOCK_STREAM
    )
    addresses = [str(info[4][0]).partition("%")[0] for info in found]
    if not addresses:
        raise PostFailed("connection_failed")
    if not may_be_private and not all(is_public(ipaddress.ip_address(a)) for a in addresses):
        raise PostFailed("target_not_allowed")
    return addresses[0]


class _Head:
    """What the parser calls while an answer comes in."""

    def __init__(self) -> None:
        self.status = 0
        self.parser = httptools.HttpResponseParser(self)

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 200:  # what is below announces another one
            self.status = status


async def _exchange(
    target: _Target,
    address: str,
    context: ssl.SSLContext | None,
    headers: Mapping[str, str],
    body: bytes,
) -> int:
    reader, writer = await asyncio.open_connection(
        address, target.port, ssl=context, server_hostname=target.host if context else None
    )
    try:
        lines = [f"POST {target.path} HTTP/1.1", f"Host: {target.netloc}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"Content-Length: {len(body)}")
        writer.write("\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body)
        await writer.drain()
        head = _Head()
        received = 0
        while not head.status:
            chunk = await reader.read(_READ_BYTES)
            received += len(chunk)
            if not chunk or received > MAX_HEAD_BYTES:
                raise PostFailed("answer_invalid")
            try:
                head.parser.feed_data(chunk)
            except httptools.HttpParserError:
                if not head.status:
                    raise PostFailed("answer_invalid") from None
        return head.status
    finally:
        writer.transport.abort()  # nothing else of it is wanted, least of all a slow farewell
