"""Where a broker has what the daemon needs: one address, spelled for WebSocket, HTTP and proof."""

from urllib.parse import SplitResult, quote, urlsplit

from tidelog.base.errors import ConfigError
from tidelog.base.net import authority

_IS_SECURE = {"http": False, "ws": False, "https": True, "wss": True}


def socket_url(broker_url: str, slug: str) -> str:
    """The WebSocket address of a mesh."""
    return _url(broker_url, slug, "ws", "ws")


def resource_url(broker_url: str, slug: str, resource: str) -> str:
    """Where something of a mesh is over HTTP: its `members`, `topics` or `queues`."""
    return _url(broker_url, slug, "http", resource)


def dialled(broker_url: str) -> str:
    """`host:port` of the broker, which a member signs together with what it sends there."""
    parts = _parts(broker_url)
    default = 443 if _IS_SECURE[parts.scheme] else 80
    try:
        return authority.spelled(parts.hostname or "", parts.port or default)
    except ValueError:
        raise _refused() from None


def is_same_broker(one: str, other: str) -> bool:
    """Whether two addresses, however they are spelled, lead to one broker."""
    return _address(one) == _address(other)


def _address(broker_url: str) -> tuple[bool, str, str]:
    parts = _parts(broker_url)
    return _IS_SECURE[parts.scheme], dialled(broker_url), parts.path.rstrip("/")


def _url(broker_url: str, slug: str, scheme: str, last: str) -> str:
    parts = _parts(broker_url)
    secure = "s" if _IS_SECURE[parts.scheme] else ""
    folder = f"{parts.netloc}{parts.path.rstrip('/')}/mesh/{quote(slug, safe='')}"
    return f"{scheme}{secure}://{folder}/{last}"


def _parts(broker_url: str) -> SplitResult:
    try:
        parts = urlsplit(broker_url)
        is_address = parts.scheme in _IS_SECURE and bool(parts.hostname) and parts.port != 0
    except ValueError:  # not a port, or a broken IPv6 address
        is_address = False
        parts = SplitResult("", "", "", "", "")
    if not is_address or parts.query or parts.fragment or "@" in parts.netloc:
        raise _refused()
    return parts


def _refused() -> ConfigError:
    return ConfigError(
        "the address of the broker is not a URL of a host. Write it as https://host:port, "
        "without name and password: this daemon's key says who it is."
    )
