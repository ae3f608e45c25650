"""The search index as a reader sees it: a manifest that names one directory per shard.

A shard is a tantivy index that is never changed after it was named: an update makes another
directory and then another manifest, in one rename. So a reader sees the index of one moment and
needs no lock. Nothing here imports Spark or Delta; the server serves searches with this module.
`tidelog.pipeline.search.index_build` writes what is read here.
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from tidelog.base.errors import TidelogError

if TYPE_CHECKING:
    import tantivy

FORMAT = 2
"""Of the manifest and of the fields of a shard; an index of another format is rebuilt."""

MAX_QUERY_CHARACTERS = 1000
"""Longest query. Each word is looked up in every shard, and nesting is bounded with it."""

MAX_HITS = 100
"""Hits of one result; each is read from disk and marked word by word."""

TIMEOUT_SECONDS = 5.0
"""Longest search. It is looked at between shards and between hits: one shard is never cut short."""

SNIPPET_CHARACTERS = 160
"""About two lines of text around what was found."""

_MANIFEST = "manifest.json"
_OPEN_TRIES = 5
"""How often the manifest is read again because an update took away what it named."""

_TEXT_FIELDS = ["text", "name"]


class SearchError(TidelogError):
    """Root of what a search can raise instead of hits."""


class NoIndex(SearchError):  # noqa: N818 - the failure is the noun
    """There is no index to search, or none that this version can read."""


class NoTantivy(SearchError):  # noqa: N818 - the failure is the noun
    """The library that searches is not installed."""


class BadQuery(SearchError):  # noqa: N818 - the failure is the noun
    """A query that cannot be understood, or one beyond a limit."""


class SearchTimeout(SearchError):  # noqa: N818 - the failure is the noun
    """The search took too long."""


class Shard(Struct, frozen=True):
    """One part of the index; a message is always in the same one."""

    folder: str
    """Directory, beside the manifest. Never changed once a manifest has named it."""
    documents: int


class Manifest(Struct, frozen=True):
    """What the index is made of; the file that holds it is replaced as a whole."""

    format: int
    through: int
    """Position of the log through which it is complete."""
    table: str
    """Id of the table it was made from: a table that was created again has another one."""
    files: tuple[str, ...]
    """Files of that table that are in it, relative to the table."""
    shard_count: int
    """What the hash of a message is divided by."""
    shards: dict[str, Shard]
    """By number; a shard without a message is absent."""

    @property
    def documents(self) -> int:
        """Number of messages in the index."""
        return sum(shard.documents for shard in self.shards.values())


class Hit(Struct, frozen=True):
    """A message that was found."""

    app_id: str
    channel: str
    message_serial: str
    name: str | None
    snippet: str
    """Part of the text with what was found; its begin if only the name was."""
    highlights: tuple[tuple[int, int], ...]
    """Begin and end of each place found, in characters of `snippet`."""
    score: float
    """Comparable within one result only."""
    committed_id: int
    """Position of the version that was found."""
    updated_at: int
    """When that version was committed, milliseconds since 1970."""


class Found(Struct, frozen=True):
    """The result of a search."""

    total: int
    """Messages that fit, of which `hits` are the best."""
    through: int
    """Position of the log that the result knows of."""
    hits: tuple[Hit, ...]


def index_root(lake_root: Path) -> Path:
    """Where the index of a lake is."""
    return lake_root / "product" / "search"


def read_manifest(root: Path) -> Manifest | None:
    """The index as it is now; None if there is none.

    Raises:
        NoIndex: it is of another version, or damaged.
    """
    try:
        text = (root / _MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    try:
        if msgspec.json.decode(text)["format"] == FORMAT:
            return msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, LookupError, TypeError):
        pass
    raise NoIndex(f"this version cannot read the search index in {root}. {_BUILD}")


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Publish an index: readers see it from here on, also after a loss of power."""
    fresh = root / f"{_MANIFEST}.new"
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(root / _MANIFEST)
    folder = os.open(root, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def outdate_index(lake_root: Path) -> None:
    """Let the next update rebuild the index; until then it can be searched as it is."""
    root = index_root(lake_root)
    try:
        known = read_manifest(root)
    except NoIndex:
        return
    if known is not None:
        write_manifest(root, msgspec.structs.replace(known, table=""))


def load_tantivy() -> None:
    """Make sure that the library is there.

    Raises:
        NoTantivy: it is not.
    """
    try:
        import tantivy  # noqa: F401 - whether it can be imported is the question
    except ImportError as error:
        raise NoTantivy(
            "searching needs the tantivy library. Install it with the server: "
            "pip install 'tidelog[pipeline]'"
        ) from error


_BUILD = "Build it: `tidelog pipeline run`."


class SearchIndex:
    """The index of a lake, open for searching; belongs to one thread at a time."""

    def __init__(self, lake_root: Path) -> None:
        self._root = index_root(lake_root)
        self._stamp: tuple[int, int] | None = None
        """Inode and time of the manifest that is open."""
        self._manifest: Manifest | None = None
        self._open: dict[str, tantivy.Index] = {}
        """Shards by their directories."""

    def search(
        self,
        query: str,
        *,
        limit: int = 10,
        app_id: str | None = None,
        channel: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Found:
        """The messages that fit best.

        Args:
            query: words, "phrases", AND, OR, -not, `name:` for the event name.
            limit: hits at most.
            app_id: only messages of this app.
            channel: only messages of channels of this name.
            timeout_seconds: when to give up.

        Raises:
            SearchError: as its kinds say.
        """
        deadline = time.monotonic() + timeout_seconds
        _check(query, limit)
        load_tantivy()
        manifest = self._refresh()
        found: list[tuple[float, int, str, tantivy.DocAddress]] = []
        total = 0
        filters = {"app_id": app_id, "channel": channel}
        for folder, index in self._open.items():
            searcher = index.searcher()
            parsed = _parse(index, query, filters)
            result = searcher.search(parsed, limit)
            total += result.count  # type: ignore[attr-defined]  # its stubs lack it
            addresses = [address for _, address in result.hits]
            positions = searcher.fast_field_values("committed_id", addresses)
            for (score, address), position in zip(result.hits, positions, strict=True):
                found.append((score, int(position or 0), folder, address))
            _in_time(deadline)
        found.sort(key=lambda hit: (-hit[0], -hit[1]))
        hits = []
        for score, position, folder, address in found[:limit]:
            hits.append(_hit(self._open[folder], query, score, position, address))
            _in_time(deadline)
        return Found(total, manifest.through, tuple(hits))

    def _refresh(self) -> Manifest:
        """Open what the manifest names now; shards that stayed the same stay open."""
        import tantivy

        for _ in range(_OPEN_TRIES):
            try:
                stat = (self._root / _MANIFEST).stat()
            except FileNotFoundError:
                raise NoIndex(f"there is no search index in {self._root} yet. {_BUILD}") from None
            stamp = (stat.st_ino, stat.st_mtime_ns)
            if stamp == self._stamp and self._manifest is not None:
                return self._manifest
            manifest = read_manifest(self._root)
            if manifest is None:
                continue
            opened: dict[str, tantivy.Index] = {}
            try:
                for shard in manifest.shards.values():
                    index = self._open.get(shard.folder)
                    if index is None:
                        index = tantivy.Index.open(str(self._root / shard.folder))
                        index.config_reader("manual")
                        index.searcher()
                    opened[shard.folder] = index
            except (ValueError, OSError):
                continue  # replaced meanwhile, and taken away: there is a newer manifest
            self._open, self._manifest, self._stamp = opened, manifest, stamp
            return manifest
        raise NoIndex(f"the search index in {self._root} is damaged. {_BUILD}")


def search(
    lake_root: Path,
    query: str,
    limit: int = 10,
    *,
    app_id: str | None = None,
    channel: str | None = None,
) -> Found:
    """One search in a lake; see `SearchIndex.search`."""
    return SearchIndex(lake_root).search(query, limit=limit, app_id=app_id, channel=channel)


def _check(query: str, limit: int) -> None:
    if not query.strip():
        raise BadQuery("the query is empty")
    if len(query) > MAX_QUERY_CHARACTERS:
        raise BadQuery(f"the query is longer than {MAX_QUERY_CHARACTERS} characters")
    if not 1 <= limit <= MAX_HITS:
        raise BadQuery(f"the limit is between 1 and {MAX_HITS}")


def _in_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise SearchTimeout("the search took too long. Search for rarer words, or filter by app.")


def _parse(
    index: "tantivy.Index", query: str, filters: dict[str, str | None] | None = None
) -> "tantivy.Query":
    from tantivy import Occur, Query

    try:
        parsed = index.parse_query(query, _TEXT_FIELDS, conjunction_by_default=True)
        given = [(name, value) for name, value in (filters or {}).items() if value is not None]
        wanted = [
            (Occur.Must, Query.const_score_query(Query.term_query(index.schema, name, value), 0.0))
            for name, value in given
        ]
        return Query.boolean_query([(Occur.Must, parsed), *wanted]) if wanted else parsed
    except ValueError as error:  # also text that is no Unicode
        raise BadQuery(
            f"the query cannot be understood: {str(error)[:200]}. "
            'Put what should be taken literally into "quotation marks".'
        ) from error


def _hit(
    index: "tantivy.Index",
    query: str,
    score: float,
    position: int,
    address: "tantivy.DocAddress",
) -> Hit:
    from tantivy import SnippetGenerator

    searcher = index.searcher()
    document = searcher.doc(address)
    generator = SnippetGenerator.create(searcher, _parse(index, query), index.schema, "text")
    generator.set_max_num_chars(SNIPPET_CHARACTERS)
    snippet = generator.snippet_from_doc(document)
    text = snippet.fragment()
    encoded = text.encode()
    highlights = tuple(
        (len(encoded[: found.start].decode()), len(encoded[: found.end].decode()))
        for found in snippet.highlighted()
    )
    return Hit(
        app_id=document.get_first("app_id") or "",
        channel=document.get_first("channel") or "",
        message_serial=document.get_first("message_serial") or "",
        name=document.get_first("name"),
        snippet=text or (document.get_first("text") or "")[:SNIPPET_CHARACTERS],
        highlights=highlights,
        score=score,
        committed_id=position,
        updated_at=document.get_first("updated_at") or 0,
    )
