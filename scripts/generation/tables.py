"""The reference of the tables of the lake, as `docs/pipeline.md` has it between two marks."""

from tidelog.pipeline.tables import TABLES, Layer, Table

BEGIN = "<!-- From tables.py, by `scripts/generate`. -->"
END = "<!-- End of what is from tables.py. -->"

LAYERS: dict[Layer, str] = {
    "bronze": "Bronze: what was committed",
    "silver": "Silver: what that means",
    "gold": "Gold: what people ask for",
    "product": "Products: what others use",
}


def reference() -> str:
    """Lineage and tables in Markdown."""
    parts = ["### Lineage", _lineage()]
    for layer, title in LAYERS.items():
        parts.append(f"### {title}")
        parts += [_table(table) for table in TABLES if table.layer == layer]
    return "\n\n".join(parts)


def _lineage() -> str:
    """What each table is made of, as a Mermaid picture."""
    lines = [
        "<!-- not run: a drawing -->",
        "",
        "```mermaid",
        "flowchart LR",
        "  store[(store)] --> log",
    ]
    for layer in LAYERS:
        lines.append(f"  subgraph {layer}")
        lines += [f"    {table.name}" for table in TABLES if table.layer == layer]
        if layer == "product":
            lines.append("    search[[search index]]")
        lines.append("  end")
    for table in TABLES:
        lines += [f"  {name} --> {table.name}" for name in table.inputs]
        lines += [f"  store -. {name} .-> {table.name}" for name in table.relations]
    lines += ["  message --> search", "```"]
    return "\n".join(lines)


def _table(table: Table) -> str:
    made = [f"`{name}`" for name in table.inputs]
    made += [f"the store's relation `{name}`" for name in table.relations]
    rows = [
        f"| `{column.name}` | `{column.kind}`{'' if column.is_nullable else ', never null'} "
        f"| {column.meaning.replace('|', chr(92) + '|')} |"
        for column in table.columns
    ]
    source = f" Made of {', '.join(made)}." if made else ""
    return "\n".join(
        [
            f"#### `{table.name}`",
            "",
            f"{table.meaning} Key: {', '.join(f'`{name}`' for name in table.key)}.{source}",
            "",
            "| column | type | meaning |",
            "|---|---|---|",
            *rows,
        ]
    )


def with_reference(document: str) -> str:
    """The page with the tables as they are now between its marks."""
    before, _, rest = document.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError("the document lacks the marks of the reference")
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"
