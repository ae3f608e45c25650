"""The page and its files, from the package: nothing is built, nothing comes from elsewhere."""

import hashlib
from importlib.resources import files

from tidelog.base.serving.surface import HttpRequest, HttpResponse

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No inline script or style, no other host, in no frame: whatever a message holds, it cannot run
here and has nowhere to send anything."""

SAFE = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
"""On every response of the dashboard."""

NOT_KEPT = (b"cache-control", b"no-store")
"""For what only a logged-in reader gets."""

_KINDS = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Assets:
    """Every file of `static`, read once."""

    def __init__(self, package: str = "tidelog.dashboard") -> None:
        self._answers: dict[str, HttpResponse] = {}
        for file in (files(package) / "static").iterdir():
            kind = _KINDS.get(file.name.rpartition(".")[2])
            if kind is not None:
                content = file.read_bytes()
                tag = b'"%s"' % hashlib.sha256(content).hexdigest()[:32].encode()
                headers = (*SAFE, (b"cache-control", b"no-cache"), (b"etag", tag))
                self._answers[file.name] = HttpResponse(200, content, kind, headers)

    def page(self, name: str, status: int = 200) -> HttpResponse:
        """An HTML file; it is not kept, so that logging out shows."""
        content = self._answers[name]
        return HttpResponse(status, content.body, content.content_type, (*SAFE, NOT_KEPT))

    def file(self, request: HttpRequest) -> HttpResponse:
        """A file for the page; a browser that has it already is told so."""
        name = request.params["file"]
        answer = self._answers.get(name)
        if answer is None or name.endswith(".html"):
            return HttpResponse(404, b"there is no such file", "text/plain; charset=utf-8", SAFE)
        if (b"etag", request.header(b"if-none-match")) in answer.headers:
            return HttpResponse(304, b"", answer.content_type, answer.headers)
        return answer
