"""Plots as SVG whose colours the page decides, so that one plot is right in light and in dark.

matplotlib draws with colours that only stand for a slot in the page's palette; they are replaced
by the palette's variables. Nothing of a stranger's text gets into a plot: names of streams are text
of the page. Every plot is drawn twice, for a wide window and for a phone, and the page shows one.
"""

import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

WIDE = (9.6, 2.7)
NARROW = (4.3, 2.9)
"""Inches at 72 points: shown at about their own size, so that text has the size of the page's."""

_TICKS = {WIDE: 8, NARROW: 3}
_CLOCK = "%H:%M"
_DAYS_WITH_HOURS = 3

_TEXT, _GRID = "#000001", "#000002"
_SERIES = tuple(f"#0000{number:02x}" for number in range(0x11, 0x1A))
_VARIABLES = {
    _TEXT: "var(--quiet)",
    _GRID: "var(--line)",
    **{color: f"var(--series-{number})" for number, color in enumerate(_SERIES, 1)},
}

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tidelog",
    "font.size": 10,
    "font.family": "sans-serif",
    "text.color": _TEXT,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _TEXT,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "xtick.color": _GRID,
    "xtick.labelcolor": _TEXT,
    "ytick.color": _GRID,
    "ytick.labelcolor": _TEXT,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


def stacked(frame: "pd.DataFrame", label: str, series: Sequence[int]) -> str:
    """Columns of a frame on top of each other, over time.

    Args:
        frame: a row for each bucket.
        label: what the plot shows, for those who cannot see it.
        series: slot of each column in the palette, from 1.
    """

    def draw(axes: "Axes") -> None:
        width = _bar_days(frame)
        below = frame.iloc[:, 0] * 0
        for slot, name in zip(series, frame.columns, strict=True):
            axes.bar(
                frame.index,
                frame[name],
                width=width,
                bottom=below,
                color=_SERIES[slot - 1],
                linewidth=0,
                align="edge",
            )
            below = below + frame[name]
        axes.set_ylim(0, 1.06 * max(1, below.max()))

    return _both(draw, frame.index, label)


def lines(frame: "pd.DataFrame", label: str, series: Sequence[int]) -> str:
    """Columns of a frame as lines over time, on a logarithmic scale: see `stacked`.

    A line ends where a bucket has no value.
    """

    def draw(axes: "Axes") -> None:
        for slot, name in zip(series, frame.columns, strict=True):
            # What takes no measurable time has no place on such a scale.
            axes.plot(
                frame.index,
                frame[name].clip(lower=0.1),
                color=_SERIES[slot - 1],
                linewidth=1.8,
                marker="o",
                markersize=5,
                markeredgewidth=0,
                solid_capstyle="round",
            )
        axes.set_yscale("log")
        axes.minorticks_off()

    return _both(draw, frame.index, label)


def _bar_days(frame: "pd.DataFrame") -> float:
    """Width of a bar in days, with a gap to the next one."""
    if len(frame) < 2:
        return 1 / 24 / 60
    seconds: float = (frame.index[1] - frame.index[0]).total_seconds()
    return 0.86 * seconds / 86400


def _both(draw: "Callable[[Axes], None]", times: "pd.Index[pd.Timestamp]", label: str) -> str:
    from html import escape

    plots = [
        f'<div class="plot {name}" role="img" aria-label="{escape(label)}">'
        f"{_svg(draw, times, size)}</div>"
        for name, size in (("wide", WIDE), ("narrow", NARROW))
    ]
    return "".join(plots)


def _svg(
    draw: "Callable[[Axes], None]", times: "pd.Index[pd.Timestamp]", size: tuple[float, float]
) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # its keys are a literal type
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.margins(x=0.02, y=0.08)
        draw(axes)
        shown = times[:: math.ceil(len(times) / _TICKS[size])]
        pattern = _pattern(times)
        axes.set_xticks(shown, [time.strftime(pattern) for time in shown])
        if pattern == _CLOCK:
            axes.set_xlabel(times[0].strftime("%Y-%m-%d"), loc="left")
        axes.yaxis.set_major_formatter(FuncFormatter(_number))
        file = io.StringIO()
        figure.savefig(
            file,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    return svg


def _pattern(times: "pd.Index[pd.Timestamp]") -> str:
    """How times are written, by how far they are apart."""
    days = (times[-1] - times[0]).days
    if days < 1:
        return _CLOCK
    return "%m-%d %H:%M" if days < _DAYS_WITH_HOURS else "%Y-%m-%d"


def _number(value: float, _position: Any) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
