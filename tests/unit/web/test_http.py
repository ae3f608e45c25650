"""The target of a request: path and query."""

import httptools
from hypothesis import given
from hypothesis import strategies as st

from tidelog.web.http import split_target


@given(st.text(st.sampled_from("/?#ab%=&:@*."), min_size=1, max_size=12))
def test_a_target_is_split_as_httptools_splits_it(target: str) -> None:
    """Also one that is in no need of it."""
    url = target.encode()
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        assert not url.startswith(b"/"), "a path with what the parser lets through is a target"
        return
    assert split_target(url) == (parsed.path or b"/", parsed.query or b"")
