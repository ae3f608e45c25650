"""A host and a port have one spelling (mesh 9.7)."""

import pytest

from tidelog.base.net import authority

SPELLINGS = {
    "broker.example:443": ["broker.example:443", "Broker.Example:443", "broker.example.:443"],
    "127.0.0.1:8080": ["127.0.0.1:8080", "[::ffff:127.0.0.1]:8080", "[::FFFF:7f00:1]:8080"],
    "[2001:db8::1]:80": ["[2001:db8::1]:80", "[2001:0DB8:0:0:0:0:0:1]:80"],
    "[fe80::1]:80": ["[fe80::1%eth0]:80", "[fe80::1%25eth0]:80"],
    "xn--mnchen-3ya.example:1": ["münchen.example:1", "MÜNCHEN.example.:1"],
}


@pytest.mark.parametrize("canonical", SPELLINGS)
def test_one_spelling(canonical: str) -> None:
    """However an address is written, it is one."""
    for text in SPELLINGS[canonical]:
        host, port = authority.read(text)
        assert port is not None
        assert authority.spelled(host, port) == canonical
        assert authority.is_same(text, frozenset({canonical}))


@pytest.mark.parametrize(
    ("text", "host"),
    [("broker.example", "broker.example"), ("::1", "::1"), ("[::1]", "::1"), ("10.0.0.5",) * 2],
)
def test_a_port_may_be_missing(text: str, host: str) -> None:
    """Of a list of hosts; what was dialled always has one."""
    assert authority.read(text) == (host, None)
    assert not authority.is_same(text, frozenset({authority.spelled(host, 443)}))


@pytest.mark.parametrize(
    "text",
    [
        *("", ":80", "a:b", "a:0", "a:65536", "a:+1", "a: 1", "a b:1", "a/b", "a@b:1", "*:1", "*"),
        *("http://a", "https://a:1", "[::1", "[::1]80", "[a]:1", "[1.2.3.4]:1", "..:1", "-a:1"),
        *(
            "127.0.0.1%evil.example:1",
            "127.0.0.1%25:1",
            "a%b:1",
            "a\0b:1",
            "a\n:1",
            "a" * 254 + ":1",
            "a:" + "1" * 400,
            "é" * 300,
        ),
    ],
)
def test_what_is_no_address(text: str) -> None:
    """It is refused, and equals nothing."""
    with pytest.raises(ValueError, match=r"."):
        authority.read(text)
    assert not authority.is_same(text, frozenset({"a:1"}))


@pytest.mark.parametrize("port", [-1, 0, 65_536])
def test_what_is_no_port(port: int) -> None:
    """A port that nobody can dial."""
    with pytest.raises(ValueError, match="not a port"):
        authority.spelled("a", port)
