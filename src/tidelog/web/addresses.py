"""What each address has of a server: connections, subscriptions, failures, tries to join.

Addresses are chosen by strangers, so there is an end to how many are remembered. An IPv6 address
counts by its first 64 bits, because whoever has one has all of them. Behind a trusted proxy the
address that it passes on counts.
"""

import ipaddress
import time
from collections.abc import Callable, Iterable

from tidelog.base.allowance import Allowance
from tidelog.base.serving.address_quota import NO_QUOTA, AddressQuota
from tidelog.base.settings.limits import PerAddress, networks

MAX_RESTING = 10_000
"""Addresses without a connection that are remembered for what they did before; one more forgets
the one that has been quiet longest. A few megabytes."""

MAX_KNOWN = 10_000
"""Peers whose quota is kept, so that an address is not taken apart for every connection."""

_MAX_ADDRESS_CHARACTERS = 100
"""Longer than any address with its zone."""

_FORWARDED = b"x-forwarded-for"
_MAX_FORWARDED_BYTES = 4096
"""Of the header's end, which the proxies wrote; what is before it is whatever a client made up."""

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv4 as a translator shows it (RFC 6052): the whole internet, in what else would be one /64."""

Headers = Iterable[tuple[bytes, bytes]]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Addresses:
    """The records of all addresses that have any."""

    def __init__(
        self,
        limits: PerAddress,
        now_ms: Callable[[], int] = _monotonic_ms,
    ) -> None:
        self.limits = limits
        self.now_ms = now_ms
        self._exempt = networks("per_address.exempt", limits.exempt)
        self._proxies = networks("per_address.trusted_proxies", limits.trusted_proxies)
        self._records: dict[str, _Record] = {}
        self._resting: dict[str, None] = {}
        """Those of them without a connection or subscription, the longest quiet first."""
        self._known: dict[str, tuple[AddressQuota, bool]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def quota(self, peer: str, headers: Headers = ()) -> AddressQuota:
        """Who a peer counts as; with the headers of a request, whoever a proxy speaks for."""
        quota, is_proxy = self._quota(peer)
        if not is_proxy:
            return quota
        for name in reversed(_forwarded(headers)):
            quota, is_proxy = self._quota(name)
            if not is_proxy:
                return quota
        return quota

    def _quota(self, peer: str) -> tuple[AddressQuota, bool]:
        """The quota of an address, and whether it is a proxy, which has none of its own."""
        if len(peer) > _MAX_ADDRESS_CHARACTERS:
            return NO_QUOTA, False
        known = self._known.get(peer)
        if known is None:
            known = self._judged(peer)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[peer] = known
        return known

    def _judged(self, peer: str) -> tuple[AddressQuota, bool]:
        address = _read(peer)
        if address is None or any(address in network for network in self._proxies):
            return NO_QUOTA, address is not None
        if any(address in network for network in self._exempt):
            return NO_QUOTA, False
        return _Counted(self, _spelled(address)), False

    # Records.

    def record(self, address: str) -> "_Record":
        """What is known of an address; of a new one, nothing."""
        found = self._records.get(address)
        return found or _Record(self.limits, self.now_ms())

    def note(self, address: str, record: "_Record") -> None:
        """Remember a record that was changed, as long as there is a reason to."""
        self._resting.pop(address, None)
        self._records[address] = record
        if record.connections or record.subscriptions:
            return
        if record.is_blank(self.now_ms()):
            del self._records[address]
            return
        self._resting[address] = None
        while len(self._resting) > MAX_RESTING:
            quietest = next(iter(self._resting))
            del self._resting[quietest], self._records[quietest]


class _Record:
    """What is known of one address."""

    __slots__ = ("connections", "failures", "joins", "subscriptions")

    def __init__(self, limits: PerAddress, now_ms: int) -> None:
        self.connections = 0
        self.subscriptions = 0
        self.failures = Allowance(limits.max_failed_authentications_per_minute, now_ms)
        self.joins = Allowance(limits.max_joins_per_minute, now_ms)

    def is_blank(self, now_ms: int) -> bool:
        """Whether it is that of an address that has never done anything."""
        return self.failures.is_whole(now_ms) and self.joins.is_whole(now_ms)


class _Counted(AddressQuota):
    """One that has limits."""

    __slots__ = ("_address", "_addresses")

    def __init__(self, addresses: Addresses, address: str) -> None:
        self._addresses = addresses
        self._address = address

    def enter(self) -> bool:
        record = self._addresses.record(self._address)
        if record.connections >= self._addresses.limits.max_connections:
            return False
        record.connections += 1
        self._addresses.note(self._address, record)
        return True

    def leave(self) -> None:
        record = self._addresses.record(self._address)
        record.connections -= 1
        self._addresses.note(self._address, record)

    def failed(self) -> None:
        record = self._addresses.record(self._address)
        record.failures.take(self._addresses.now_ms())
        self._addresses.note(self._address, record)

    def wait_seconds(self) -> int:
        record = self._addresses.record(self._address)
        return record.failures.wait_seconds(self._addresses.now_ms())

    def join_wait_seconds(self) -> int:
        record = self._addresses.record(self._address)
        wait = record.joins.take(self._addresses.now_ms())
        self._addresses.note(self._address, record)
        return wait

    def may_subscribe(self) -> bool:
        record = self._addresses.record(self._address)
        return record.subscriptions < self._addresses.limits.max_subscriptions

    def subscribe(self) -> bool:
        if not self.may_subscribe():
            return False
        record = self._addresses.record(self._address)
        record.subscriptions += 1
        self._addresses.note(self._address, record)
        return True

    def unsubscribe(self) -> None:
        record = self._addresses.record(self._address)
        record.subscriptions -= 1
        self._addresses.note(self._address, record)


def _read(peer: str) -> Address | None:
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address in _TRANSLATED:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        return address.ipv4_mapped or address
    return address


def _spelled(address: Address) -> str:
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))


def _forwarded(headers: Headers) -> list[str]:
    """The addresses that proxies have added, the nearest last."""
    given = b",".join(value for name, value in headers if name == _FORWARDED)
    parts = given[-_MAX_FORWARDED_BYTES:].decode("latin-1").split(",")
    return [_without_port(part.strip()) for part in parts if part.strip()]


def _without_port(name: str) -> str:
    """As some proxies write it: `192.0.2.1:5000`, `[2001:db8::1]:5000`, `[2001:db8::1]`."""
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0] if name.count(":") == 1 else name
