"""Who counts as whom, and how much of it is remembered."""

import ipaddress
from typing import Any

import pytest

from tidelog.base.errors import ConfigError
from tidelog.base.serving.address_quota import NO_QUOTA
from tidelog.base.settings.limits import PerAddress
from tidelog.web import addresses as module
from tidelog.web.addresses import Addresses


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> int:
        """Milliseconds."""
        return int(self.now * 1000)


def made(clock: Clock | None = None, **limits: Any) -> Addresses:
    """Addresses with small limits."""
    given: dict[str, Any] = {
        "max_connections": 2,
        "max_subscriptions": 3,
        "max_failed_authentications_per_minute": 3,
        "max_joins_per_minute": 2,
        **limits,
    }
    return Addresses(PerAddress(**given), clock or Clock())


def test_connections_of_one_address() -> None:
    """As many as there may be, again when one has gone, and none of another address."""
    addresses = made()
    ana, bob = addresses.quota("192.0.2.1"), addresses.quota("192.0.2.2")
    assert [ana.enter(), ana.enter(), ana.enter()] == [True, True, False]
    assert bob.enter()
    ana.leave()
    assert ana.enter()
    for quota in (ana, ana, bob):
        quota.leave()
    assert len(addresses) == 0


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("64:ff9b::192.0.2.1", "192.0.2.1", True),
        ("64:ff9b::192.0.2.1", "64:ff9b::192.0.2.2", False),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, is_same: bool) -> None:
    """IPv4 as it is, in whatever clothes; IPv6 by its network."""
    addresses = made()
    assert addresses.quota(one).enter()
    assert addresses.quota(one).enter()
    assert addresses.quota(other).enter() is not is_same


def test_failures_come_back_evenly() -> None:
    """Three at once, then one in twenty seconds."""
    clock = Clock()
    quota = made(clock).quota("192.0.2.1")
    for _ in range(3):
        assert quota.wait_seconds() == 0
        quota.failed()
    assert quota.wait_seconds() == 20
    clock.now = 19.5
    assert quota.wait_seconds() == 1
    clock.now = 20.0
    assert quota.wait_seconds() == 0
    quota.failed()
    assert quota.wait_seconds() == 20


def test_tries_to_join() -> None:
    """Each counts, whatever came of it; those that were refused do not make the wait longer."""
    clock = Clock()
    quota = made(clock).quota("192.0.2.1")
    assert [quota.join_wait_seconds() for _ in range(4)] == [0, 0, 30, 30]
    clock.now = 30.0
    assert quota.join_wait_seconds() == 0


def test_subscriptions_outlive_connections() -> None:
    """They are given back one by one, some after their connection."""
    addresses = made()
    quota = addresses.quota("192.0.2.1")
    assert quota.enter()
    assert [quota.subscribe() for _ in range(4)] == [True, True, True, False]
    quota.leave()
    assert not quota.subscribe()
    quota.unsubscribe()
    assert quota.subscribe()
    for _ in range(3):
        quota.unsubscribe()
    assert len(addresses) == 0


def test_this_machine_is_exempt_and_need_not_be() -> None:
    """The default spares the loopback; the setting can be empty."""
    assert made().quota("127.0.0.1") is NO_QUOTA
    assert made().quota("::1") is NO_QUOTA
    assert made().quota("") is NO_QUOTA
    assert made(exempt="").quota("127.0.0.1") is not NO_QUOTA
    assert made(exempt=["10.0.0.0/8"]).quota("10.1.2.3") is NO_QUOTA


@pytest.mark.parametrize(
    ("forwarded", "counted"),
    [
        (["192.0.2.7"], "192.0.2.7"),
        (["9.9.9.9, 192.0.2.7"], "192.0.2.7"),
        (["192.0.2.7, 10.0.0.9"], "192.0.2.7"),
        (["192.0.2.7", "10.0.0.9"], "192.0.2.7"),
        ([], None),
        (["10.0.0.8"], None),
        (["nonsense"], None),
        (["127.0.0.1"], None),
        (["9.9.9.9," * 1000 + "192.0.2.7"], "192.0.2.7"),
        ([" " * 5000, "192.0.2.7"], "192.0.2.7"),
        (["192.0.2.7:50123"], "192.0.2.7"),
        (["[2001:db8::7]:50123"], "2001:db8::7"),
        (["[2001:db8::7]"], "2001:db8::7"),
        (['"[2001:db8::7]:50123"'], None),
        (["192.0.2.7, ", ""], "192.0.2.7"),
    ],
)
def test_who_a_trusted_proxy_speaks_for(forwarded: list[str], counted: str | None) -> None:
    """The nearest address that is no proxy; what a client wrote in front of it means nothing."""
    addresses = made(trusted_proxies="10.0.0.0/8")
    headers = [(b"x-forwarded-for", each.encode()) for each in forwarded]
    quota = addresses.quota("10.0.0.1", headers)
    if counted is None:
        assert quota is NO_QUOTA
        return
    assert quota.enter()
    assert addresses.quota(counted).enter()
    assert not quota.enter()


def test_nobody_else_says_who_he_is() -> None:
    """The header of a peer that is no proxy is not read."""
    addresses = made()
    quota = addresses.quota("192.0.2.1", [(b"x-forwarded-for", b"127.0.0.1")])
    assert quota.enter()
    assert quota.enter()
    assert not addresses.quota("192.0.2.1").enter()


def test_what_is_remembered_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses without a connection are forgotten, the quietest first; others never are."""
    monkeypatch.setattr(module, "MAX_RESTING", 10)
    monkeypatch.setattr(module, "MAX_KNOWN", 10)
    clock = Clock()
    addresses = made(clock)
    connected = addresses.quota("198.51.100.1")
    assert connected.enter()
    start = int(ipaddress.ip_address("192.0.2.0"))
    names = [str(ipaddress.ip_address(start + number)) for number in range(100)]
    for name in names:
        for _ in range(3):
            addresses.quota(name).failed()
    assert len(addresses) == 11
    assert len(addresses._known) <= 10
    assert addresses.quota(names[-1]).wait_seconds()
    assert not addresses.quota(names[0]).wait_seconds()
    assert connected.enter()
    clock.now = 60.0
    addresses.quota(names[-1]).failed()
    clock.now = 120.0
    addresses.quota(names[-1]).enter()
    addresses.quota(names[-1]).leave()
    assert len(addresses) == 10


@pytest.mark.parametrize("setting", ["exempt", "trusted_proxies"])
def test_what_is_no_network_is_refused(setting: str) -> None:
    """With the setting and what to write instead."""
    with pytest.raises(ConfigError, match=rf"per_address\.{setting}: 'the office' is neither"):
        PerAddress(**{setting: "10.0.0.1, the office"})  # type: ignore[arg-type]
