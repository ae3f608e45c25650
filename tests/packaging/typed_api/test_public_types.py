"""The types that editors and type checkers see of the public API.

mypy runs as it would for somebody who has installed tidelog: strict, without this repository's
configuration, the package found as installed and believed because of its `py.typed`.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
REFUSED = HERE / "refused.py"
EXAMPLES = sorted(HERE.glob("*_example.py"))
SECONDS = 300.0
"""mypy reads everything the examples import; with its cache it takes a second."""


NOT_READ = """\
[mypy]
[mypy-cryptography.*,hypothesis.*,numpy.*,opentelemetry.*,pydantic.*,pyiceberg.*,sqlalchemy.*,werkzeug.*]
follow_imports = skip
"""
"""What others may have beside tidelog or not, and what no type of the public API is made of."""


def mypy(tmp_path: Path, *files: Path) -> list[str]:
    """The errors that mypy has with files of somebody else."""
    (tmp_path / "mypy.ini").write_text(NOT_READ, encoding="utf-8")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
            *("--hide-error-context", "--cache-dir", str(HERE.parents[2] / ".mypy_cache/public")),
            *map(str, files),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.stderr == ""
    return [line for line in ended.stdout.splitlines() if ": error: " in line]


def test_the_examples_are_understood(tmp_path: Path) -> None:
    """Every value has the type that `assert_type` says, and no line needs an excuse."""
    assert {path.stem.removesuffix("_example") for path in EXAMPLES} == {
        *("channels", "harness", "mesh", "reading", "sync")
    }
    assert mypy(tmp_path, *EXAMPLES) == []


def test_mistakes_are_found(tmp_path: Path) -> None:
    """Each marked line is refused for the reason it names, and no other line is."""
    marks = Counter(
        (number, code)
        for number, line in enumerate(REFUSED.read_text(encoding="utf-8").splitlines(), start=1)
        for code in re.findall(r"# expect: ([\w-]+)", line)
    )
    found = Counter(
        (int(match[1]), match[2])
        for line in mypy(tmp_path, REFUSED)
        if (match := re.search(r"refused\.py:(\d+): error: .*\[([\w-]+)\]$", line))
    )
    assert found == marks
    assert len(marks) > 10


def test_every_public_name_is_in_an_example() -> None:
    """What `tidelog.client` offers is used or refused by one of these files, or is an error."""
    import tidelog.client

    text = "\n".join(path.read_text(encoding="utf-8") for path in (*EXAMPLES, REFUSED))
    offered = [getattr(tidelog.client, name) for name in tidelog.client.__all__]
    values = [each for each in offered if not issubclass(each, Exception)]
    assert [each.__name__ for each in values if each.__name__ not in text] == []
