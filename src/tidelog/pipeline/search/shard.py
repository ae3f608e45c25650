"""One shard of the search index: a tantivy index that is written beside the one before it.

tantivy keeps the documents of a shard in segments, and a deleted one stays in its segment with a
mark. That is enough for a message that was changed or deleted, so an update costs what has changed.
A segment of which a quarter is marked is written anew. What the table has the content of no more,
because it was forgotten, must not stay in a file either: the segments that held it are written anew
without it, also where it had only a mark.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from tidelog.pipeline.search.index import Shard

if TYPE_CHECKING:
    import tantivy

KEY = ("app_id", "channel", "message_serial")

WRITER_BYTES = 32_000_000
"""Memory of a shard while it is written; tantivy needs 15 MB."""

DEAD_SHARE = 0.25
"""Share of marked documents beyond which a segment is written anew."""

_LOCKS = (".tantivy-writer.lock", ".tantivy-meta.lock")
_REPLACED = ("meta.json", ".managed.json")
"""Files of a shard that tantivy writes again; all others never change and can be linked."""


_REMOVALS = 50
_REMOVAL_SECONDS = 0.1
"""How often, and how long after one another, it is tried to remove a shard."""


def key_of(row: dict[str, Any]) -> str:
    """How the index calls a message."""
    return "/".join(row[part] for part in KEY)


def text_of(data: str | None) -> str:
    """The words of a message: a string as it is, of anything else all strings in it."""
    if data is None:
        return ""
    found: list[str] = []
    try:
        waiting = [msgspec.json.decode(data)]
    except (msgspec.MsgspecError, RecursionError):  # nested deeper than Python can follow
        return data
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))
    return "\n".join(found)


class ShardWriter:
    """One shard on its way to its next directory; it is made when there is something to write."""

    def __init__(self, root: Path, number: int, before: Shard | None) -> None:
        """Begin with what is there; `before` is the shard as it is published."""
        self.number = number
        self._root = root
        self._before = before
        self._folder = root / f"{number:04d}-{uuid4().hex}"
        self._known = None if before is None else _opened(root / before.folder).searcher()
        self._writer: tantivy.IndexWriter | None = None
        self._erased: list[str] = []
        """Keys of messages of which no segment may have anything."""

    def put(self, row: dict[str, Any]) -> None:
        """Put a message as it is now in the place of what is there of it."""
        import tantivy

        key = key_of(row)
        # Also of documents that are only marked: their terms stay as long as they do.
        is_held = self._known is not None and self._known.doc_freq("key", key) > 0
        if is_held and row["is_erased"]:
            self._erased.append(key)
            self._begun().delete_documents_by_term("key", key)
        elif is_held and self._is_found(key):
            self._begun().delete_documents_by_term("key", key)
        if row["is_searchable"]:
            fields = {
                name: row[name]
                for name in ("app_id", "channel", "message_serial", "name")
                if row[name] is not None
            }
            self._begun().add_document(
                tantivy.Document(
                    key=key,
                    text=text_of(row["data"]),
                    committed_id=row["committed_id"],
                    updated_at=row["updated_at"],
                    **fields,
                )
            )

    def _is_found(self, key: str) -> bool:
        from tantivy import Query

        assert self._known is not None  # noqa: S101 - it holds the key
        return bool(self._known.search(Query.term_query(_schema(), "key", key), 1).hits)

    def _begun(self) -> "tantivy.IndexWriter":
        """The writer of the next directory, which has all that the one before has."""
        import tantivy

        if self._writer is None:
            self._folder.mkdir()
            if self._before is None:
                index = tantivy.Index(_schema(), path=str(self._folder), reuse=False)
            else:
                _link(self._root / self._before.folder, self._folder)
                index = tantivy.Index.open(str(self._folder))
            self._writer = index.writer(WRITER_BYTES, num_threads=1)
        return self._writer

    def finish(self) -> Shard | None:
        """The shard as it is now, not yet published; None if it is as it was."""
        if self._writer is None:
            return None
        _end(self._writer)
        self._write_segments_anew()
        _remove_unnamed(self._folder)
        return Shard(self._folder.name, _opened(self._folder).searcher().num_docs)

    def _write_segments_anew(self) -> None:
        """Put the documents of segments that have to go into others, and so let them go."""
        writer: tantivy.IndexWriter | None = None
        for segment in _segments(self._folder):
            with _only(self._folder, segment) as searcher:
                if not _is_bad(segment, searcher, self._erased):
                    continue
                if writer is None:
                    index = _opened(self._folder)
                    writer = index.writer(WRITER_BYTES, num_threads=1)
                for document in _documents(searcher):
                    writer.delete_documents_by_term("key", document.get_first("key"))
                    writer.add_document(document)
        if writer is not None:
            _end(writer)


def _end(writer: "tantivy.IndexWriter") -> None:
    """Commit; a segment without documents is left out by that."""
    writer.commit()
    writer.garbage_collect_files()
    writer.wait_merging_threads()


def _opened(folder: Path) -> "tantivy.Index":
    """A shard as it is now."""
    import tantivy

    index = tantivy.Index.open(str(folder))
    index.config_reader("manual")
    return index


def _is_bad(segment: dict[str, Any], searcher: "tantivy.Searcher", erased: Sequence[str]) -> bool:
    """Whether a segment has too many marked documents, or any of what was erased."""
    marked = (segment["deletes"] or {}).get("num_deleted_docs", 0)
    if marked > DEAD_SHARE * segment["max_doc"]:
        return True
    return bool(marked) and any(searcher.doc_freq("key", key) for key in erased)


def _segments(folder: Path) -> list[dict[str, Any]]:
    """The segments of a shard, as tantivy notes them."""
    segments: list[dict[str, Any]] = _meta(folder)["segments"]
    return segments


def _meta(folder: Path) -> dict[str, Any]:
    meta: dict[str, Any] = msgspec.json.decode((folder / "meta.json").read_bytes())
    return meta


@contextmanager
def _only(folder: Path, segment: dict[str, Any]) -> "Iterator[tantivy.Searcher]":
    """One segment of a shard as if it were all of it.

    tantivy's Python library knows no segments, but a directory whose notes name only one.
    """
    name = segment["segment_id"].replace("-", "")
    alone = folder.with_name(f"{folder.name}-{name}")
    alone.mkdir()
    try:
        _link(folder, alone, lambda file: file.startswith(name))
        notes = _meta(folder) | {"segments": [segment]}
        (alone / "meta.json").write_bytes(msgspec.json.encode(notes))
        yield _opened(alone).searcher()
    finally:
        remove_folder(alone)


def remove_folder(folder: Path) -> None:
    """Remove a shard that nobody names any more.

    A thread of tantivy reads the notes of a shard that was opened, under a lock beside them; if it
    comes late, the folder is not empty again.
    """
    for _ in range(_REMOVALS):
        try:
            shutil.rmtree(folder)
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        time.sleep(_REMOVAL_SECONDS)
    shutil.rmtree(folder)


def _documents(searcher: "tantivy.Searcher") -> "Iterator[tantivy.Document]":
    """The documents that are not marked."""
    import tantivy

    if searcher.num_docs:
        for _, address in searcher.search(tantivy.Query.all_query(), searcher.num_docs).hits:
            yield searcher.doc(address)


def _remove_unnamed(folder: Path) -> None:
    """Remove files of segments that went while others were merged."""
    named = {segment["segment_id"].replace("-", "") for segment in _segments(folder)}
    for file in folder.iterdir():
        if file.name not in (*_LOCKS, *_REPLACED) and file.name.partition(".")[0] not in named:
            file.unlink()


def _schema() -> "tantivy.Schema":
    """Every field is stored, so that a shard can be rewritten from itself."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    for name in ("key", "app_id", "channel", "message_serial"):
        builder.add_text_field(name, stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("name", stored=True)
    builder.add_text_field("text", stored=True)
    builder.add_integer_field("committed_id", stored=True, fast=True)
    builder.add_integer_field("updated_at", stored=True)
    return builder.build()


def _link(
    before: Path, folder: Path, is_wanted: Callable[[str], bool] = lambda _name: True
) -> None:
    """The same files in another directory, without copying what never changes."""
    for file in before.iterdir():
        if file.name in _LOCKS or not is_wanted(file.name):
            continue
        target = folder / file.name
        if file.name in _REPLACED:
            shutil.copyfile(file, target)
        else:
            try:
                os.link(file, target)
            except OSError:  # a file system without links
                shutil.copyfile(file, target)
