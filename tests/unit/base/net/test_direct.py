"""What is said of a redirection."""

import pytest

from tidelog.base.net.direct import instead


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://b.example/app/key?token=SECRET#SECRET", "https://b.example/app/key,"),
        ("https://user:SECRET@b.example/x", "https://b.example/x,"),
        ("/elsewhere?token=SECRET", "/elsewhere,"),
        ("?SECRET", "nowhere,"),
        ("", "nowhere,"),
    ],
)
def test_a_place_is_named_without_its_secrets(location: str, shown: str) -> None:
    """A server that only moved repeats our query, and a log line is read by others."""
    text = instead(location)
    assert f"It redirects to {shown}" in text
    assert "SECRET" not in text
