"""What a figure is: the same operation at two sizes, and how much more the larger may cost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Measured = dict[str, Any]
"""What one size gave; `cost` is what is compared."""


class Figure(NamedTuple):
    """One ratio of one run."""

    name: str
    unit: str
    """Of the costs."""
    at_most: float
    """The ratio that is the aim."""
    measure: Callable[[Path, bool], tuple[Measured, Measured]]
    """In a directory, quickly or not: what the large size gave, and the small one."""

    def print_as(self, home: Path, *, quick: bool) -> dict[str, Any]:
        """Measure in a directory of its own."""
        home.mkdir()
        large, small = self.measure(home, quick)
        return {
            "unit": self.unit,
            "large": large,
            "small": small,
            "ratio": round(large["cost"] / small["cost"], 2),
            "at_most": self.at_most,
        }
