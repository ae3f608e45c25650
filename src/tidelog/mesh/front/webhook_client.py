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

from tidelog.base.errors import TidelogError
from tidelog.base.net.tls import context_for
from tidelog.mesh.front.webhook_connections import (
    AnswerInvalid,
    ClosedBefore,
    KeptConnections,
    Origin,
    WebhookConnection,
)

_EMBEDDING = (
    ipaddress.ip_network("64:ff9b::/96"),
    ipaddress.ip_network("64:ff9b:1::/48"),
    ipaddress.ip_network("::/96"),
)
"""IPv6 networks whose addresses end in an IPv4 address that a gateway may lead to."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PostFailed(TidelogError):  # noqa: N818 - the failure is the noun
    """There was no response; `code` says why, in a word that is safe to store."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class _Location(NamedTuple):
    origin: Origin
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


class WebhookClient:
    """Posts, each with its time, on connections that are kept between two."""

    def __init__(self, *, timeout_s: float, may_be_private: bool) -> None:
        self._timeout_s = timeout_s
        self._may_be_private = may_be_private
        self.kept = KeptConnections()

    def close(self) -> None:
        """End the connections that are kept; one under way ends with its post."""
        self.kept.close()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """POST; returns the status, and redirections are statuses like any other.

        Raises:
            PostFailed: there was no response.
        """
        connection = None
        try:
            target = _target(url)
            request = _request(target, headers, body)
            async with asyncio.timeout(self._timeout_s):
                connection = self.kept.take(target.origin)
                try:
                    if connection is None:
                        connection = await self._open(target.origin)
                    status = await connection.post(request)
                except ClosedBefore:  # by its key the receiver knows a post that it has had
                    connection = await self._open(target.origin)
                    status = await connection.post(request)
            await connection.rest()
            self.kept.put(connection)
            connection = None
            return status
        except TimeoutError:
            raise PostFailed("timeout") from None
        except ssl.SSLError:
            raise PostFailed("tls_failed") from None
        except AnswerInvalid:
            raise PostFailed("answer_invalid") from None
        except (OSError, UnicodeError, ValueError):
            raise PostFailed("connection_failed") from None
        finally:
            if connection is not None:
                connection.abort()

    async def _open(self, origin: Origin) -> WebhookConnection:
        address = await _address(origin, may_be_private=self._may_be_private)
        return await WebhookConnection.open(origin, address, await context_for(f"{origin.scheme}:"))


def _target(url: str) -> _Location:
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
    return _Location(Origin(parts.scheme, host, port), netloc, path)


def _request(target: _Location, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {target.path} HTTP/1.1", f"Host: {target.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


async def _address(origin: Origin, *, may_be_private: bool) -> str:
    """The first address of the host; all of them must be public unless others are allowed."""
    found = await asyncio.get_running_loop().getaddrinfo(
        origin.host, origin.port, type=socket.SOCK_STREAM
    )
    addresses = [str(info[4][0]).partition("%")[0] for info in found]
    if not addresses:
        raise PostFailed("connection_failed")
    if not may_be_private and not all(is_public(ipaddress.ip_address(a)) for a in addresses):
        raise PostFailed("target_not_allowed")
    return addresses[0]
