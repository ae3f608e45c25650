"""Where something is dialled: a host and a port, in one spelling.

One program signs the address it dialled and another one compares it, so both must write it alike:
`Broker.Example.`, dialled over https, is `broker.example:443` to both.
"""

import ipaddress
import re
from typing import Final

MAX_CHARACTERS = 300
"""Of a host and a port: a name has at most 253, and nobody should be made to read a longer one."""

_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")


def spelled(host: str, port: int) -> str:
    """`host:port`: a name in lower case without its final dot, an IPv6 address short, in brackets.

    An IPv4 address that came in IPv6 clothes, as a socket for both has it, is written as what it
    is. The zone of an address means something on its own machine only, and is left out.

    Raises:
        ValueError: that is no host, or no port.
    """
    if not 0 < port <= 65_535:
        raise ValueError(f"{port} is not a port")
    return f"{_spelled_host(host)}:{port}"


def read(text: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port`, `[IPv6]:port` or a bare IPv6 address.

    Raises:
        ValueError: it is something else.
    """
    if not text or len(text) > MAX_CHARACTERS:
        raise ValueError("no host")
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or ":" not in host or (port and not port.startswith(":")):
            raise ValueError("a bracket is not closed, or holds no IPv6 address")
        has_port, port = bool(port), port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        has_port = True
    else:
        has_port = False
    _spelled_host(host)
    if not has_port:
        return host, None
    if not _PORT.fullmatch(port) or not 0 < int(port) <= 65_535:
        raise ValueError(f"{port[:10]!r} is not a port")
    return host, int(port)


def is_same(text: str, accepted: frozenset[str]) -> bool:
    """Whether `host:port`, however it is spelled, is among some that `spelled` wrote."""
    try:
        host, port = read(text)
        return port is not None and spelled(host, port) in accepted
    except ValueError:
        return False


def _spelled_host(host: str) -> str:
    bare, zone, _ = host.partition("%")
    try:
        # Only IPv6 has zones: `127.0.0.1%evil.example` is a name that somebody else can own.
        address = ipaddress.IPv6Address(bare) if zone else ipaddress.ip_address(bare)
    except ValueError:
        return _spelled_name(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return f"[{address}]"
        address = address.ipv4_mapped
    return str(address)


def _spelled_name(name: str) -> str:
    if not name.isascii():
        name = name.encode("idna").decode("ascii")  # a UnicodeError is a ValueError
    name = name.lower().removesuffix(".")
    if not _NAME.fullmatch(name):
        raise ValueError("no host")
    return name
