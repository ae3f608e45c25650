"""Figures and labels of the operator's pages: measured, a setting's default, or a metric's."""

import re

from support.markdown import DOCS, Document, code

CAPACITY = Document("operations/capacity.md")


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
    """The ratios beside Insieme in the README stand in docs/measurements.md."""
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    [cell] = re.findall(r"tidelog did ([^|]*):", readme)
    figures = [figure for figure in re.findall(r"\d+(?:\.\d+)?", cell) if figure != "256"]
    measured = Document("measurements.md").text
    assert figures
    assert [figure for figure in figures if figure not in measured] == []
