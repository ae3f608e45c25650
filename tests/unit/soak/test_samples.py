"""What a long run calls flat."""

import pytest

from soak.samples import MEBIBYTE, MEMORY, Sample, verdict

MINUTE_S = 60.0


def minutes(*levels: float) -> list[Sample]:
    """One sample a minute, in mebibytes."""
    return [Sample(at * MINUTE_S, level * MEBIBYTE) for at, level in enumerate(levels)]


def test_what_fills_up_in_the_first_sixth_is_flat() -> None:
    """Caches fill before anything is compared."""
    found = verdict(minutes(*range(80, 90), *[90.0] * 50), MEMORY)
    assert found["is_flat"]
    assert found["growth"] == 0


def test_steady_growth_is_not_flat() -> None:
    """A quarter of a mebibyte a minute is more than the tolerance in the end."""
    found = verdict(minutes(*(80 + at / 4 for at in range(60))), MEMORY)
    assert not found["is_flat"]
    assert found["slope_per_hour"] == pytest.approx(15 * MEBIBYTE)


def test_one_peak_at_the_end_is_no_growth() -> None:
    """Levels are compared, not single samples; the peak is shown."""
    found = verdict(minutes(*[80.0] * 59, 200.0), MEMORY)
    assert found["is_flat"]
    assert found["highest"] == 200 * MEBIBYTE


def test_too_few_samples_are_said() -> None:
    """Nothing is called flat that nobody looked at."""
    with pytest.raises(ValueError, match="run for longer"):
        verdict(minutes(80, 80, 80), MEMORY)
