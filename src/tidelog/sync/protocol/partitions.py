"""Partition names and sets: one normal form for storage, comparison and authorization."""

import unicodedata
from collections.abc import Sequence

from tidelog.sync.protocol.fault import Fault

MAX_PARTITIONS = 64
"""Distinct partitions of one event: each is an index row and a state to validate against."""

MAX_NAME_BYTES = 128


def normal_name(name: str) -> str:
    """NFC and nothing else: no trimming, no case folding."""
    return unicodedata.normalize("NFC", name)


def normal_set(names: Sequence[str]) -> tuple[str, ...]:
    """NFC each, without duplicates, ascending by UTF-8 bytes."""
    if len(names) == 1:
        return (normal_name(names[0]),)
    return tuple(sorted({normal_name(name) for name in names}, key=lambda name: name.encode()))


def name_faults(names: Sequence[str]) -> list[Fault]:
    """What is wrong with the names themselves; each index is that of the input."""
    faults = []
    for index, name in enumerate(names):
        size = len(normal_name(name).encode())
        if size == 0:
            faults.append(Fault(f"partitions.{index}", "must not be empty"))
        elif size > MAX_NAME_BYTES:
            faults.append(Fault(f"partitions.{index}", f"longer than {MAX_NAME_BYTES} bytes"))
    return sorted(faults)


def partition_faults(names: Sequence[str]) -> list[Fault]:
    """What is wrong with the partitions of an event."""
    if not names:
        return [Fault("partitions", "must not be empty")]
    faults = name_faults(names)
    if len(names) > MAX_PARTITIONS and not faults and len(normal_set(names)) > MAX_PARTITIONS:
        return [Fault("partitions", f"more than {MAX_PARTITIONS}")]
    return faults
