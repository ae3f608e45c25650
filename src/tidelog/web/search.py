"""`GET /search`: the search index of the lake, served beside the surfaces.

The pipeline builds the index (`tidelog.pipeline.search.index_build`) and the server only reads it,
so a result is as new as the last build; it says as of which position. Only what is erased since is
left out.
Searching happens in threads of its own: tantivy reads files, and the event loop must not wait for a
disk.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec

from tidelog.base.serving.openapi import TEXT, WHOLE, Operation, Parameter, bearer, listing, record
from tidelog.base.serving.surface import (
    Endpoint,
    Handle,
    HttpRequest,
    HttpResponse,
    Route,
    guarded,
    is_bearer,
)
from tidelog.channels.protocol.names import stream_name
from tidelog.channels.protocol.version import number_of
from tidelog.config.settings import Settings
from tidelog.pipeline.search.index import (
    MAX_HITS,
    MAX_QUERY_CHARACTERS,
    TIMEOUT_SECONDS,
    BadQuery,
    Found,
    Hit,
    SearchError,
    SearchIndex,
    SearchTimeout,
)
from tidelog.store.engine import Store
from tidelog.web.handshake import refuse

THREADS = 2
"""Searches at the same time. More would take the processor from the committer."""

MAX_WAITING = 16
"""Searches that wait for a thread; beyond it a caller is told to come back, rather than to wait
longer than it would."""

_PARAMETERS = frozenset({"q", "app_id", "channel", "limit"})
_DEFAULT_HITS = 10
_RETRY_SOON = (b"retry-after", b"1")

_HIT = record(
    "app_id channel message_serial name snippet highlights score committed_id updated_at",
    app_id=TEXT,
    channel=TEXT,
    message_serial=TEXT,
    name={"type": ["string", "null"]},
    snippet=TEXT,
    highlights=listing(listing(WHOLE)),
    score={"type": "number"},
    committed_id=WHOLE,
    updated_at=WHOLE,
)

OPERATION = Operation(
    summary="Search the visible messages of all channels, as of the last build of the index.",
    tag="search",
    answer=record("total through hits", total=WHOLE, through=WHOLE, hits=listing(_HIT)),
    parameters=(
        Parameter(
            "q",
            'Words that must all occur,  "phrases", AND, OR, -not, name: for the event name.',
            TEXT | {"minLength": 1, "maxLength": MAX_QUERY_CHARACTERS},
            is_required=True,
        ),
        Parameter("app_id", "Only this app."),
        Parameter("channel", "Only channels of this name."),
        Parameter(
            "limit",
            "Most hits.",
            {"type": "integer", "minimum": 1, "maximum": MAX_HITS, "default": _DEFAULT_HITS},
        ),
    ),
    security=bearer(
        "admin_token",
        "The setting admin_token; with --dev it may be left unset, and none is needed.",
    ),
)


class SearchSurface:
    """What `tidelog serve` mounts if there is a lake."""

    name = "search"

    def __init__(self, settings: Settings, lake_root: Path, store: Store) -> None:
        self._store = store
        self._token = settings.admin_token
        self._is_open = settings.dev and not settings.admin_token
        self._indexes = [SearchIndex(lake_root) for _ in range(THREADS)]
        """Those that no thread uses."""
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="search")
        self._under_way = 0

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return (guarded("GET", "/search", self._admit, OPERATION),)

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return ()

    async def _admit(self, request: HttpRequest) -> Handle | HttpResponse:
        if not self._is_open and not is_bearer(request, self._token):
            error = "send the admin token: Authorization: Bearer <admin_token>"
            return refuse(401, error, code="unauthorized")
        return self._get

    async def _get(self, request: HttpRequest) -> HttpResponse:
        try:
            asked = _asked(request.query_string)
        except ValueError as error:
            return refuse(400, str(error))
        if self._under_way >= THREADS + MAX_WAITING:
            return refuse(503, "too many searches at once", _RETRY_SOON)
        try:
            found = await self._found(asked)
        except BadQuery as error:
            return refuse(400, str(error))
        except (SearchTimeout, TimeoutError):
            return refuse(503, "the search took too long", _RETRY_SOON, code="search_timeout")
        except SearchError as error:
            return refuse(503, str(error), code="search_unavailable")
        return HttpResponse(200, msgspec.json.encode(found))

    async def _found(self, asked: "Asked") -> Found:
        """The best hits of a search that are not erased, though the index may still have them."""
        found = await self._search(asked)
        hits = await self._kept(found)
        if len(hits) < len(found.hits) < found.total:
            found = await self._search(msgspec.structs.replace(asked, limit=MAX_HITS))
            hits = await self._kept(found)
        total = found.total - len(found.hits) + len(hits)
        return msgspec.structs.replace(found, total=total, hits=tuple(hits[: asked.limit]))

    async def _kept(self, found: Found) -> list[Hit]:
        messages = [
            (stream_name(hit.app_id, hit.channel), number_of(hit.message_serial))
            for hit in found.hits
        ]
        erased = await self._store.rows_of("channels_erased", messages) if messages else ()
        return [hit for hit, rows in zip(found.hits, erased, strict=True) if not rows]

    async def _search(self, asked: "Asked") -> Found:
        """The answer of a thread; whoever gave up waiting leaves it to end by itself."""
        self._under_way += 1
        work = asyncio.get_running_loop().run_in_executor(self._pool, self._in_thread, asked)
        work.add_done_callback(self._done)
        return await asyncio.wait_for(asyncio.shield(work), 2 * TIMEOUT_SECONDS)

    def _done(self, work: "asyncio.Future[Found]") -> None:
        self._under_way -= 1
        if not work.cancelled():
            work.exception()  # nobody may be waiting any more

    def _in_thread(self, asked: "Asked") -> Found:
        with self._index() as index:
            return index.search(
                asked.query, limit=asked.limit, app_id=asked.app_id, channel=asked.channel
            )

    @contextlib.contextmanager
    def _index(self) -> Iterator[SearchIndex]:
        """An index of one's own: there are as many as threads."""
        index = self._indexes.pop()
        try:
            yield index
        finally:
            self._indexes.append(index)


class Asked(msgspec.Struct, frozen=True):
    """A search, taken from the query string."""

    query: str
    limit: int = _DEFAULT_HITS
    app_id: str | None = None
    channel: str | None = None


def _asked(query_string: bytes) -> Asked:
    """Take the query string apart; `ValueError` says what is wrong with it."""
    pairs = parse_qsl(
        query_string.decode("ascii", "strict"),
        keep_blank_values=True,
        strict_parsing=bool(query_string),
        errors="strict",
        max_num_fields=16,
    )
    given = dict(pairs)
    if len(given) < len(pairs):
        raise ValueError("a parameter is given twice")
    unknown = given.keys() - _PARAMETERS
    if unknown:
        raise ValueError(f"there is no parameter {min(unknown)[:40]!r}")
    if "q" not in given:
        raise ValueError("the parameter q is missing: what to search for")
    limit = given.get("limit", str(_DEFAULT_HITS))
    is_number = limit.isascii() and limit.isdigit() and len(limit) <= len(str(MAX_HITS))
    if not (is_number and 1 <= int(limit) <= MAX_HITS):
        raise ValueError(f"limit must be a number between 1 and {MAX_HITS}")
    return Asked(given["q"], int(limit), given.get("app_id"), given.get("channel"))
