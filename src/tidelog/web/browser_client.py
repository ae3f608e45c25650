"""`/tidelog.js`: the client for pages, as every server has it; nothing is built.

The file is a copy of `clients/js/tidelog.js`, made by `scripts/generate`. It is public, holds no
secret and does nothing by itself, so pages of every origin may import it.
"""

import gzip
import hashlib
from functools import cached_property
from importlib.resources import files

from tidelog.base.serving.openapi import TEXT, Operation
from tidelog.base.serving.surface import HttpRequest, HttpResponse, Route

PATH = "/tidelog.js"

_KIND = "text/javascript; charset=utf-8"


class BrowserClient:
    """The module, read once, and compressed when the first asks for it so: few servers have one."""

    def __init__(self) -> None:
        self._plain = (files("tidelog.web") / "static" / "tidelog.js").read_bytes()
        self._tag = hashlib.sha256(self._plain).hexdigest()[:32].encode()

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self._plain, mtime=0)

    def route(self) -> Route:
        """Where it is served."""
        described = Operation(
            summary="The client of channels for pages: an ES module.",
            tag="server",
            answer=TEXT,
            media_type="text/javascript",
        )
        return Route("GET", PATH, self._get, described)

    async def _get(self, request: HttpRequest) -> HttpResponse:
        encoding = b"gzip" if _takes_gzip(request.header(b"accept-encoding") or b"") else b""
        tag = b'"%s%s"' % (self._tag, b"-gzip" if encoding else b"")
        headers: tuple[tuple[bytes, bytes], ...] = (
            (b"access-control-allow-origin", b"*"),
            (b"cross-origin-resource-policy", b"cross-origin"),
            (b"x-content-type-options", b"nosniff"),
            # Asked for again at every load, so that a page never lags behind its server.
            (b"cache-control", b"no-cache"),
            (b"etag", tag),
            (b"vary", b"accept-encoding"),
        )
        if tag in _tags(request.header(b"if-none-match") or b""):
            return HttpResponse(304, b"", _KIND, headers)
        if encoding:
            headers = (*headers, (b"content-encoding", encoding))
        body = self._compressed if encoding else self._plain
        return HttpResponse(200, body, _KIND, headers)


def _takes_gzip(accepted: bytes) -> bool:
    """Whether a browser says so; a quality of 0 means that it does not."""
    for part in accepted.lower().split(b","):
        name, _, quality = part.replace(b" ", b"").partition(b";q=")
        if name == b"gzip":
            return not quality or quality.strip(b"0.") != b""
    return False


def _tags(header: bytes) -> list[bytes]:
    """The entity tags of `If-None-Match`; a proxy may have made them weak."""
    return [tag.strip().removeprefix(b"W/") for tag in header.split(b",")]
