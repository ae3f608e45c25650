"""Which link connects the halves of a surface."""

import os

from tidelog.link.direct import connect_directly
from tidelog.link.ends import FrontEnd, OwnerHalf
from tidelog.link.message import Vocabulary

VARIABLE = "TIDELOG_TEST_LINK"
"""For tests: `encoded` or `apart`, as the functions of `encoded` say; they show that the halves
share nothing that could not cross to another process."""


def connect(half: OwnerHalf, vocabulary: Vocabulary) -> FrontEnd:
    """The front's end of a link to an owner's half of this process."""
    chosen = os.environ.get(VARIABLE, "")
    if not chosen:
        return connect_directly(half)
    from tidelog.link.encoded import connect_apart, connect_encoded

    links = {"encoded": connect_encoded, "apart": connect_apart}
    if chosen not in links:
        raise ValueError(f"{VARIABLE}: {chosen!r} is no link; use {tuple(links)}, or leave it out")
    return links[chosen](half, vocabulary)
