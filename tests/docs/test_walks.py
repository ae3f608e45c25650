"""Documents that are one walk: every command runs as printed, and prints what is below it."""

from pathlib import Path

import psutil
import pytest

from support import node
from support.docs import walk
from support.docs.pages import WALK_TEST, checked_by
from support.docs.walk import RUN, Walk, blocks
from support.mesh.daemon_process import eventually

WAIT_SECONDS = 300.0
"""Up to thirty commands, each of which starts Python; a busy machine takes seconds for one."""

PACKAGES = {
    "docs/howto/pusher-clients.md": node.pusher_home,
    "docs/howto/insieme.md": node.insieme_home,
}
"""Pages whose reader has Node, and something that comes by npm."""


def with_node(home: Path, folder: Path) -> dict[str, str]:
    """What the reader of such a page has: Node, and packages in the folder."""
    program, _ = node.programs()
    (folder / "node_modules").symlink_to(home / "node_modules")
    return {"PATH": f"{Path(program).parent}:{walk.shell_path()}"}


@pytest.mark.parametrize("document", checked_by(WALK_TEST))
def test_a_walk_works_as_printed(document: str, folder: Path, free_port: int) -> None:
    """Each command succeeds in the order of the document, and prints what the document says."""
    environment = with_node(PACKAGES[document](), folder) if document in PACKAGES else {}
    printed = Walk(document, folder, free_port).run(WAIT_SECONDS, environment)
    run = [
        block
        for block in blocks(document)
        if block.kind in RUN and not (block.name or block.why_not)
    ]
    assert len(printed) == len(run)


def test_the_task_list_has_as_many_lines_as_its_title_says() -> None:
    """Sixty, without empty ones."""
    document = "docs/howto/offline-task-list.md"
    [program] = [block for block in blocks(document) if block.name == "tasks.py"]
    assert "in 60 lines" in (walk.ROOT / document).read_text(encoding="utf-8")
    assert len([line for line in program.text.splitlines() if line]) <= 60


# That a walk notices what is wrong.

GOOD = """\
```python say.py
print("the port is 8080")
```

```sh
python say.py
sleep 60 &
```

```text
the port is ...
```

```python
ports = [8080]
print("not heard below")
```

```python
print(len(ports), "port")
```

```text
1 port
```
"""


def short_walk(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Walk:
    """A walk of a document that is only for a test."""
    (folder / "page.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr(walk, "ROOT", folder)
    return Walk("page.md", folder, 9)


def test_a_walk_ends_what_it_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a document leaves running in the background is gone afterwards."""
    assert short_walk(folder, GOOD, monkeypatch).run(20.0) == [
        "the port is 9\n",
        "not heard below\n",
        "1 port\n",
    ]

    def is_empty() -> bool:
        return str(folder) not in [each.info["cwd"] for each in psutil.process_iter(["cwd"])]

    eventually(is_empty)  # a process that was killed is there for a moment longer


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("python say.py", "false"), "page.md:5 failed"),
        (("the port is ...", "the port was ..."), "page.md:10 says"),
        (('print("the port is 8080")', 'print("no port")'), "page.md:10 says"),
        (('print("the', 'prin("the'), "page.md:5 failed"),
        (("print(len", "prin(len"), "page.md:19 failed"),
        (("1 port", "2 ports"), "page.md:23 says"),
    ],
)
def test_a_walk_notices(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], complaint: str
) -> None:
    """A command that fails, and output that is not the document's, are told with their place."""
    page = short_walk(folder, GOOD.replace(*change), monkeypatch)
    with pytest.raises(AssertionError, match=complaint):
        page.run(20.0)
