"""Figures and labels of the operator's pages: measured, a setting's default, or a metric's."""

import re

from support.docs.markdown import DOCS, Document, code

CAPACITY = Document("operations/capacity.md")
COMPARISON = Document("comparison.md")


def test_measured_figures_stand_in_the_measurements() -> None:
    """No figure of the capacity page is missing in docs/measurements.md."""
    measured = Document("measurements.md").text
    [figures] = CAPACITY.tables("Capacity")
    assert figures
    missing = [figure for _, figure, _ in figures if figure not in measured]
    assert not missing


def test_ids_in_labels_are_those_the_page_names() -> None:
    """The page on observability names every label that is an id, and the metric of members."""
    reference = (DOCS / "reference/metrics.md").read_text(encoding="utf-8")
    labels = {
        row.split(" | ")[0].strip("|` "): set(code(row.split(" | ")[2]))
        for row in re.findall(r"^\| `tidelog_.*$", reference, re.MULTILINE)
    }
    told = set(code(Document("operations/observability.md").section("Metrics")))
    ids = {label for each in labels.values() for label in each if label.endswith("_id")}
    assert ids == {each for each in told if each.endswith("_id")}
    assert {name for name, each in labels.items() if "client_id" in each} <= told


def test_figures_of_the_comparison_were_measured() -> None:
    """The ratios beside Insieme stand in docs/measurements.md."""
    [claim] = re.findall(r"tidelog did (.*?)\(`bench/sync.py`\)", COMPARISON.text, re.DOTALL)
    figures = [figure for figure in re.findall(r"\d+(?:\.\d+)?", claim) if figure != "256"]
    measured = Document("measurements.md").text
    assert figures
    assert [figure for figure in figures if figure not in measured] == []


def test_every_source_of_the_comparison_is_listed_and_used() -> None:
    """What a cell cites has an entry below, and no entry is left over."""
    table, _, sources = COMPARISON.text.partition("## Sources")
    cited = {
        each
        for found in re.findall(r"\[([A-Z]{1,2}\d?(?:, [A-Z]{1,2}\d)*)\]", table)
        for each in found.split(", ")
    }
    assert cited == set(re.findall(r"\b([A-Z]{1,2}\d?): ", sources))


def test_every_cell_of_the_comparison_names_what_it_stands_on() -> None:
    """A cell about tidelog names a test, others cite a source; versions stand in the heading."""
    [rows] = COMPARISON.tables("What each does")
    assert len(rows) > 10
    assert not [what for what, ours, *_ in rows if "`tests/" not in ours]
    bare = [
        f"{what}: {cell}"
        for what, _, *others, _ in rows
        for cell in others
        if what != "maturity" and not re.search(r"\[[A-Z]{1,2}\d", cell)
    ]
    assert not bare
