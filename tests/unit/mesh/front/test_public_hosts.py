"""What may have been dialled by whoever came in somewhere (mesh 9.7)."""

import pytest

from tidelog.mesh.front.public_hosts import Local, PublicHosts


@pytest.mark.parametrize(
    ("listening_host", "local", "expected"),
    [
        ("127.0.0.1", ("127.0.0.1", 8080), {"127.0.0.1:8080", "localhost:8080"}),
        ("localhost", ("127.0.0.1", 8080), {"127.0.0.1:8080", "localhost:8080"}),
        ("::1", ("::1", 8080), {"[::1]:8080", "localhost:8080"}),
        ("0.0.0.0", ("127.0.0.1", 8080), {"127.0.0.1:8080", "localhost:8080"}),
        ("0.0.0.0", ("10.0.0.5", 8080), {"10.0.0.5:8080"}),
        ("::", ("::ffff:10.0.0.5", 8080), {"10.0.0.5:8080"}),
        ("::", ("::ffff:127.0.0.1", 8080), {"127.0.0.1:8080", "localhost:8080"}),
        ("::", ("2001:db8::5", 8080), {"[2001:db8::5]:8080"}),
        ("Broker.example", ("10.0.0.5", 8080), {"10.0.0.5:8080", "broker.example:8080"}),
        ("127.0.0.1", None, set()),
    ],
)
def test_by_default_where_it_came_in(listening_host: str, local: Local, expected: set[str]) -> None:
    """The address of the connection itself; never another one that the machine has as well."""
    assert PublicHosts((), listening_host).at(local) == expected


def test_what_is_listed_replaces_it() -> None:
    """A host without a port has those of https and http; where it came in means nothing then."""
    hosts = PublicHosts(("Broker.Example.", "10.0.0.5:8080", "[::1]:1"), "0.0.0.0")
    expected = {"broker.example:443", "broker.example:80", "10.0.0.5:8080", "[::1]:1"}
    assert hosts.at(("127.0.0.1", 8080)) == expected
    assert hosts.at(None) == expected
