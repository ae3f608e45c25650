"""Quantiles from buckets."""

import math

import pytest

from tidelog.base.quantile import quantile

BOUNDS = (1.0, 2.0, math.inf)


@pytest.mark.parametrize(
    ("counts", "share", "wanted"),
    [
        ((0, 0, 0), 0.5, None),
        ((10, 0, 0), 0.5, 0.5),
        ((0, 10, 0), 1.0, 2.0),
        ((5, 5, 0), 0.5, 1.0),
        ((5, 5, 0), 0.75, 1.5),
        ((0, 0, 7), 0.99, 2.0),
    ],
)
def test_a_quantile_lies_within_its_bucket(
    counts: tuple[int, ...], share: float, wanted: float | None
) -> None:
    """Even within a bucket; of the last, which has no end, its beginning; None of nothing."""
    assert quantile(BOUNDS, counts, share) == wanted
