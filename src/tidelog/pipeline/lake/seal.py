"""Seals: whether the files of a table are those that the pipeline wrote.

A file is named after the digest of its bytes, so whoever changes the file without renaming it is
found. Each commit notes the sum of the names of all files, the seal; it goes on from the seal
before it, so what somebody else has added or taken away stays visible in all that follow, until
the whole table is rewritten.

That finds accidents and other programs, also where a table is made of what has changed since. It
does not stop somebody who does all of this as the pipeline does it: such a row is found by what it
says, if it can be made again.
"""

import re
from collections.abc import Iterable, Sequence
from functools import reduce
from hashlib import blake2b, file_digest
from operator import xor
from pathlib import Path

_NAME = re.compile(r"[0-9]{5}-([0-9a-f]{32})[.]parquet")
"""Number within its write, and digest."""


def sealed_files(files: Sequence[Path]) -> list[Path]:
    """The files of one write, renamed after what they hold."""
    return [
        file.rename(file.with_name(f"{number:05d}-{_digest(file)}.parquet"))
        for number, file in enumerate(files)
    ]


def is_as_written(file: Path) -> bool:
    """Whether a file holds what its name says; one of an earlier version does not say it."""
    named = digest_in_name(file)
    return named is None or _digest(file) == named


def digest_in_name(file: Path) -> str | None:
    """The digest that a file is named after; None for one of an earlier version."""
    named = _NAME.fullmatch(file.name)
    return None if named is None else named[1]


def seal_of(names: Iterable[str]) -> int:
    """The sum of names; adding one a second time takes it away."""
    return reduce(xor, map(_number, names), 0)


def _number(name: str) -> int:
    """63 bits, which is what a transaction of Delta can say."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, lambda: blake2b(digest_size=16)).hexdigest()
