"""Looking for content in the files of a lake, whatever they are packed with.

A file is searched as it is, and unpacked: every column of every Parquet file, committed or not, the
smallest and largest values in its footer, every block of every document store of tantivy with the
documents that are only marked as deleted, and every term of its dictionaries.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import tantivy


def files_with(root: Path, marker: str) -> list[str]:
    """Files under `root` in which `marker` can be found; it is in lower case, of letters."""
    assert marker.isascii()
    assert marker.islower()
    assert marker.isalpha(), "tantivy cuts words at anything else"
    found = {
        str(file.relative_to(root))
        for file in root.rglob("*")
        if file.is_file() and any(marker.encode() in piece for piece in pieces(file))
    }
    for meta in root.rglob("meta.json"):
        searcher = tantivy.Index.open(str(meta.parent)).searcher()
        if searcher.doc_freq("text", marker) or searcher.doc_freq("name", marker):
            found.add(f"{meta.parent.relative_to(root)} (terms)")
    return sorted(found)


def pieces(file: Path) -> Iterator[bytes]:
    """The bytes of a file, as they are and unpacked."""
    content = file.read_bytes()
    yield content
    if content[:4] == b"PAR1" and content[-4:] == b"PAR1":
        parquet = pq.ParquetFile(file)
        for batch in parquet.iter_batches():
            for row in batch.to_pylist():
                for value in row.values():
                    yield value if isinstance(value, bytes) else str(value).encode()
        yield str(parquet.metadata.to_dict()).encode()
    elif file.suffix == ".store":
        yield from store_blocks(content)


def store_blocks(content: bytes) -> Iterator[bytes]:
    """The blocks of a document store of tantivy: their size, then LZ4, one after the other."""
    at, count = 0, 0
    while at + 4 < len(content):
        size = int.from_bytes(content[at : at + 4], "little")
        try:
            block, at = _unpacked(content, at + 4, size)
        except IndexError:  # behind the last block: the index of the blocks
            break
        count += 1
        yield block
    assert count or len(content) < 200, "a store without a readable block: has its format changed?"


def _unpacked(content: bytes, at: int, size: int) -> tuple[bytes, int]:
    """One LZ4 block of `size` bytes, and where it ends."""
    if not 0 < size <= 1 << 24:
        raise IndexError(size)
    block = bytearray()
    while len(block) < size:
        token = content[at]
        literals, at = _length(content, at + 1, token >> 4)
        block += content[at : at + literals]
        at += literals
        if len(block) >= size:
            break
        offset = int.from_bytes(content[at : at + 2], "little")
        length, at = _length(content, at + 2, token & 15)
        if not 0 < offset <= len(block):
            raise IndexError(offset)
        for _ in range(length + 4):
            block.append(block[-offset])
    if len(block) != size:
        raise IndexError(len(block))
    return bytes(block), at


def _length(content: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while True:
            more = content[at]
            length, at = length + more, at + 1
            if more != 255:
                break
    return length, at
