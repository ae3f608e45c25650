"""A channels service that only notes what it was asked."""

import hashlib
import hmac
from collections.abc import Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, cast
from urllib.parse import urlencode

from tidelog.base.serving.surface import HttpRequest, HttpResponse, Route
from tidelog.base.told import Told
from tidelog.base.until_told import until_told
from tidelog.channels.front.api.history import HistoryApi
from tidelog.channels.front.api.routes import Service
from tidelog.channels.front.reads.message_reader import MessageReader
from tidelog.channels.protocol.requests import Mutation, MutationResult, Published
from tidelog.channels.settings import App
from tidelog.web.routing import Paths

APP = App(id="a1", key="k1", secret="s1")
RESULT = MutationResult("v9", 18, 44)


class Recording:
    """Stands for `tidelog.channels.front.api.routes.Service`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        """Name, app id and the other arguments of each call; named ones by their values. A part's
        method is named with its part."""
        self.answers: dict[str, Any] = {"publish": Published(b'{"ok":true}'), "mutate": RESULT}
        """What a method answers, if not an empty object."""
        self.raises: dict[str, Exception] = {}
        self.messages = RecordingPart(self, MessageReader, "messages")
        self.history_api = RecordingPart(self, HistoryApi, "history_api")

    @property
    def service(self) -> Service:
        """Itself, as what it stands for."""
        return cast("Service", self)

    def __getattr__(self, name: str) -> Any:
        return self.noting(name, is_async=iscoroutinefunction(getattr(Service, name)))

    def begin_publish(self, app: App, *arguments: Any, told: Told[bytes], **named: Any) -> None:
        """A publish whose answer is told."""
        answer = self.noting("publish", is_async=False)(app, *arguments, **named)
        told(answer if isinstance(answer, Exception) else answer.body)

    def begin_mutation(self, app: App, mutation: Mutation, told: Told[MutationResult]) -> None:
        """A mutation whose answer is told."""
        told(self.noting("mutate", is_async=False)(app, mutation))

    def noting(self, name: str, *, is_async: bool) -> Any:
        """A method of this name."""

        def note(app: App, *arguments: Any, **named: Any) -> Any:
            self.calls.append((name, app.id, *arguments, *named.values()))
            if name in self.raises:
                raise self.raises[name]
            return self.answers.get(name, b"{}")

        async def note_later(app: App, *arguments: Any, **named: Any) -> Any:
            return note(app, *arguments, **named)

        return note_later if is_async else note


class RecordingPart:
    """Stands for a part of the service."""

    def __init__(self, whole: Recording, kind: type, name: str) -> None:
        self._whole = whole
        self._kind = kind
        self._name = name

    def __getattr__(self, name: str) -> Any:
        is_async = iscoroutinefunction(getattr(self._kind, name))
        return self._whole.noting(f"{self._name}.{name}", is_async=is_async)


def signed_query(method: str, path: str, body: bytes, now_s: int, app: App, **query: str) -> str:
    """The query string of a request as the server SDK signs it."""
    parameters = {
        **query,
        "auth_key": app.key,
        "auth_timestamp": str(now_s),
        "auth_version": "1.0",
    }
    if method == "POST":
        parameters["body_md5"] = hashlib.md5(body).hexdigest()
    pairs = "&".join(f"{name}={value}" for name, value in sorted(parameters.items()))
    text = f"{method}\n{path}\n{pairs}"
    signature = hmac.new(app.secret.encode(), text.encode(), "sha256").hexdigest()
    return urlencode({**parameters, "auth_signature": signature})


async def call(
    routes: Sequence[Route],
    method: str,
    path: str,
    body: bytes = b"",
    query: str = "",
    headers: dict[str, str] | None = None,
) -> HttpResponse:
    """What the routes answer to a request, as the web room would hand it to them."""
    paths: Paths[dict[str, Route]] = Paths()
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    for template, methods in by_path.items():
        paths.add(template, methods)
    found = paths.find(path.encode())
    assert found is not None, f"no route for {path}"
    methods, params = found
    route = methods[method]
    request = HttpRequest(
        method=method,
        raw_path=path.encode(),
        query_string=query.encode(),
        headers=tuple((name.encode(), value.encode()) for name, value in (headers or {}).items()),
        body=body,
        peer="",
        params=params,
    )
    if route.answer is None:
        return await route.handle(request)
    answer: HttpResponse = await until_told(partial(route.answer, request))
    return answer
