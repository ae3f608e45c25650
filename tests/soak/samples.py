"""What a long run sampled, and whether it stayed where it was after the first minutes."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

WARM_UP_SHARE = 1 / 6
"""Of the run: ten minutes of an hour. Caches fill meanwhile and the allocator finds its size."""
EDGE_SHARE = 0.1
"""Of what comes after: how much at either end is compared, by its median."""

MEBIBYTE = 1 << 20


class Tolerance(NamedTuple):
    """How much a quantity may grow between the two ends and count as flat."""

    absolute: float
    share: float
    reason: str


MEMORY = Tolerance(
    8 * MEBIBYTE,
    0.05,
    "an allocator that gives nothing back keeps its highest peak, and a later one may be a little "
    "higher; a leak of 200 bytes for each of the 50,000 writes of an hour is more than 8 MiB",
)
FILES = Tolerance(
    8, 0.0, "as many short connections of the load as can be open at once when a sample is taken"
)
WAL = Tolerance(
    4 * MEBIBYTE,
    0.0,
    "the file is started again from its beginning when 4,000 pages are in it, and may be longer by "
    "one transaction of `limits.commit_batch_bytes`",
)


class Sample(NamedTuple):
    """One quantity at one time."""

    at_s: float
    value: float


def verdict(samples: Sequence[Sample], tolerance: Tolerance) -> dict[str, Any]:
    """Compare the level after the warm-up with that at the end."""
    end_s = samples[-1].at_s
    settled = [sample for sample in samples if sample.at_s >= WARM_UP_SHARE * end_s]
    if len(settled) < 4:
        raise ValueError("too few samples to say anything: run for longer")
    edge = max(2, round(EDGE_SHARE * len(settled)))
    first, last = (
        statistics.median(sample.value for sample in part)
        for part in (settled[:edge], settled[-edge:])
    )
    slope, _ = statistics.linear_regression(
        [sample.at_s for sample in settled], [sample.value for sample in settled]
    )
    allowed = max(tolerance.absolute, tolerance.share * first)
    return {
        "at_start": samples[0].value,
        "after_warm_up": first,
        "at_end": last,
        "highest": max(sample.value for sample in settled),
        "growth": last - first,
        "slope_per_hour": round(slope * 3600, 1),
        "growth_allowed": allowed,
        "is_flat": last - first <= allowed,
    }


def trend(samples: Sequence[Sample]) -> dict[str, Any]:
    """The same figures of what is meant to grow, or that nobody judges."""
    found = verdict(samples, Tolerance(0, 0, ""))
    del found["growth_allowed"], found["is_flat"]
    return found
