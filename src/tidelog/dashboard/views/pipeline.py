"""The lake for the page: its tables, how far each is, and what the checks said.

Read with delta-rs in a thread of its own, without Spark. The libraries are an extra; where they are
not installed the page says so.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.base.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.search.index import SearchIndex
    from tidelog.pipeline.tables import Table

T = TypeVar("T")

MAX_HITS = 30

_LOG = "_delta_log"
_MISSING = "The pipeline is not installed here. Install it: pip install 'tidelog[pipeline]'"


class PipelineView:
    """One lake and its search index."""

    def __init__(self, root: Path, url: str = "") -> None:
        self._root = root
        self._url = url
        """Of the object store the lake is on, if it is; what is here is then its search index."""
        # One thread: an open index belongs to one, and nobody should read a lake twice at once.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidelog-dashboard")
        self._index: SearchIndex | None = None

    def signature(self) -> Hashable:
        """Changes with every commit of any table."""
        try:
            return tuple(
                (folder.parent.name, folder.stat().st_mtime_ns)
                for folder in sorted(self._root.glob(f"*/*/{_LOG}"))
            )
        except OSError:
            return ()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def tables(self) -> dict[str, Any]:
        """Every table, and every verdict."""
        return await self._in_thread(self._read)

    def _read(self) -> dict[str, Any]:
        try:
            from tidelog.pipeline.lake.lake import Lake
            from tidelog.pipeline.tables import TABLES
        except ImportError:
            return {"problem": _MISSING}
        if self._url:
            return {
                "problem": f"The lake is on {self._url}, which this page does not read. Ask it: "
                "tidelog pipeline sql"
            }
        if not self._root.is_dir():
            return {
                "problem": f"There is no lake in {self._root} yet. Build it: tidelog pipeline run"
            }
        lake = Lake(self._root)
        return {
            "root": str(self._root),
            "tables": [_table(lake, table) for table in TABLES],
            "verdicts": _verdicts(lake),
        }

    async def search(self, query: str) -> dict[str, Any]:
        """The messages that fit best."""
        return await self._in_thread(lambda: self._search(query))

    def _search(self, query: str) -> dict[str, Any]:
        import msgspec

        from tidelog.pipeline.search.index import SearchError, SearchIndex

        if self._index is None:
            self._index = SearchIndex(self._root)
        try:
            found: dict[str, Any] = msgspec.to_builtins(self._index.search(query, limit=MAX_HITS))
        except SearchError as error:
            return {"problem": str(error)}
        return found


def _table(lake: "Lake", table: "Table") -> dict[str, Any]:
    import pyarrow as pa

    row: dict[str, Any] = {"name": table.name, "layer": table.layer, "meaning": table.meaning}
    try:
        delta = lake.delta(table.name)
        if delta is None:
            return row
        files = pa.table(delta.get_add_actions(flatten=True))
        counts = files.column("num_records").to_pylist() if files.num_rows else []
        sizes = files.column("size_bytes").to_pylist()
        return row | {
            "rows": sum(count or 0 for count in counts),
            "bytes": sum(sizes),
            "files": len(sizes),
            "through": lake.through(table.name),
            "written_at": delta.history(1)[0].get("timestamp"),
        }
    except TidelogError as error:
        return row | {"problem": str(error)}


def _verdicts(lake: "Lake") -> list[dict[str, Any]]:
    try:
        if lake.delta("verdict") is None:
            return []
        rows = lake.arrow("verdict").to_pylist()
    except TidelogError as error:
        return [{"check": "verdict", "problem": str(error)}]
    return [
        row | {"ran_at": int(row["ran_at"].timestamp() * 1000)}
        for row in sorted(rows, key=lambda row: str(row["check"]))
    ]
