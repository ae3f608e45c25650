"""The server does what its OpenAPI document says: requests that schemathesis makes of it."""

import asyncio
import os
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from hypothesis import HealthCheck, Phase, given, seed, settings

from support.channels.attacked import ROOM, prepared
from support.channels.peer import APP, ChannelsNode
from support.channels.raw import Answer, Json, signed_target
from support.channels.refusals import check_answer

CASES = int(os.environ.get("TIDELOG_TEST_SOAK_CASES", "60"))
"""About so many; `scripts/soak` has more."""


def load_schemathesis() -> Any:
    """The library, whose imports warn of things that are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import schemathesis
        import schemathesis.checks
        import schemathesis.openapi
    return schemathesis


class Signature:
    """A `requests` authentication: signs what is about to be sent."""

    def __call__(self, request: Any) -> Any:
        """Replace the parameters of the signature by correct ones."""
        parts = urlsplit(request.url)
        params = {
            name: value
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
            if not name.startswith("auth_") and name != "body_md5"
        }
        body = request.body
        if isinstance(body, str):
            request.body = body = body.encode()
        if request.method == "POST" and body is None:
            body = b""
        target = signed_target(request.method, parts.path, body, params, now=time.time())
        request.url = f"{parts.scheme}://{parts.netloc}{target}"
        return request


class Explorer:
    """Runs schemathesis against the server, from a thread of its own."""

    def __init__(self, node: ChannelsNode, document: Json, serial: str, examples: int) -> None:
        self.seen: Counter[str] = Counter()
        self._node = node
        self._document = document
        self._serial = serial
        self._examples = examples

    def run(self) -> None:
        """Every operation of the app's API, with good and with bad data."""
        library = load_schemathesis()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schema = library.openapi.from_dict(self._document)
            library.auths.unregister()
            for found in schema.get_all_operations():
                operation = found.ok()
                # A stream of events does not end; its checks are in the conformance tests.
                if operation.path.startswith("/apps/") and not operation.path.endswith("/stream"):
                    for mode in library.GenerationMode:
                        self._attack(library, operation, mode)

    def _attack(self, library: Any, operation: Any, mode: Any) -> None:
        import requests
        from schemathesis.specs.openapi.checks import (
            content_type_conformance,
            response_schema_conformance,
            status_code_conformance,
        )

        session = requests.Session()
        checks = [
            library.checks.not_a_server_error,
            content_type_conformance,
            response_schema_conformance,
            status_code_conformance,
        ]

        @seed(7)
        @settings(
            max_examples=self._examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def attack(case: Any) -> None:
            self._fill_in(case)
            before = self._node.server.committer.tail.position
            response = case.call(
                base_url=self._node.server.url, session=session, auth=Signature(), timeout=60
            )
            case.validate_response(response, checks=checks)
            found = {name.lower(): value[0] for name, value in response.headers.items()}
            answer = Answer(response.status_code, found, response.content)
            if answer.status >= 300:
                check_answer(answer, (case, response.request.url))
                assert self._node.server.committer.tail.position == before, "refused, yet stored"
            self.seen[f"{mode.value} {answer.status}"] += 1

        attack()
        session.close()

    def _fill_in(self, case: Any) -> None:
        """Let half of the requests find what they are about."""
        path = case.path_parameters or {}
        if not isinstance(path, dict):
            return
        path["app_id"] = APP.id
        if self.seen.total() % 2:
            for name, value in (("channel", ROOM), ("message_serial", self._serial)):
                if name in path:
                    path[name] = value


async def test_the_document_describes_what_the_server_does(tmp_path: Path) -> None:
    """Signed requests out of the OpenAPI document: no 5xx, answers as the document says."""
    async with prepared(tmp_path) as (node, serial), node.v2() as neighbour:
        document = (await node.client.get(f"{node.server.url}/openapi.json")).json()
        operations = sum(
            len(methods) for path, methods in document["paths"].items() if path.startswith("/apps/")
        )
        tester = Explorer(node, document, serial, CASES // operations // 2 + 1)
        await asyncio.to_thread(tester.run)
        assert tester.seen.total() >= CASES * 0.9, tester.seen
        assert tester.seen["positive 200"] > CASES // 10
        await neighbour.quiet()
        assert (await node.client.get(f"{node.server.url}/healthz")).json()["ready"] is True
        print(dict(tester.seen))  # noqa: T201
