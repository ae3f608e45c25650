"""The page about the dashboard says what the code does."""

from pathlib import Path

from tidelog.dashboard.feed import MAX_PAGES, MAX_PUSHED
from tidelog.dashboard.sessions import SECONDS_PER_TRY, SESSION_SECONDS, TRIES

PAGE = (Path(__file__).parents[3] / "docs" / "operations" / "dashboard.md").read_text("utf-8")


def test_the_figures_are_those_of_the_code() -> None:
    """Every limit that the page names has the value that the code has."""
    for text in (
        f"lasts {SESSION_SECONDS // 3600} hours",
        f"After {TRIES} wrong tokens",
        f"waits {SECONDS_PER_TRY:.0f} seconds",
        f"At most {MAX_PAGES} open pages",
        f"up to {MAX_PUSHED} entries",
    ):
        assert text in PAGE, text


def test_every_view_is_described() -> None:
    """Whoever adds a view says what it shows."""
    main = Path(__file__).parents[3] / "src/tidelog/dashboard/static/main.js"
    views = main.read_text("utf-8").split("const VIEWS = {")[1].split("};")[0]
    titles = [line.split('"')[1] for line in views.strip().splitlines()]
    assert [f"| {title} |" in PAGE for title in titles] == [True] * 8
