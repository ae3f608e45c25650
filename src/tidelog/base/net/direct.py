"""HTTP requests that go where they are sent and nowhere else.

Python's own client follows a redirection with all headers, the caller's token among them, to
whichever host the answer names. Who may send a request on may not have what it proves.
"""

import http.client
import re
import urllib.error
import urllib.request
from typing import IO, Any, Final

from tidelog.base.terminal import printable

STATUSES: Final = (301, 302, 303, 307, 308)
"""Answers that name another address."""


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Follow nothing: a redirection is an error like any other."""
        del req, fp, code, msg, headers, newurl


def opened(request: urllib.request.Request, timeout_s: float) -> Any:
    """The response to a request, as `urllib.request.urlopen` has it; a redirection is an error.

    Raises:
        urllib.error.HTTPError: the server answered with another status than 2xx.
        OSError: there was no response.
    """
    return urllib.request.build_opener(_Stay).open(request, timeout=timeout_s)


def advice(error: urllib.error.HTTPError) -> str:
    """What to do about a response that is a redirection; empty if it is none."""
    if error.code not in STATUSES:
        return ""
    return instead(error.headers.get("location", ""))


def instead(location: str) -> str:
    """What to do about a redirection to `location`.

    Without its query, which may repeat a token of ours, and without a user's name and password.
    """
    target = re.sub(r"(?<=//)[^/?#]*@", "", re.split(r"[?#]", location, maxsplit=1)[0])
    return (
        f"It redirects to {printable(target)[:300] or 'nowhere'}, which was not followed. If that "
        "is the server, name its address instead."
    )
