"""The how-to of a plug-in of sync: its files and its commands, as printed."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from tidelog.testing.process import ServerProcess

HOWTO = Path(__file__).parents[3] / "docs/howto"


def blocks(page: str, *languages: str) -> list[list[str]]:
    """The code blocks of a page, by language."""
    text = (HOWTO / page).read_text(encoding="utf-8")
    return [re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) for language in languages]


async def run(directory: Path, command: str) -> str:
    """What a command prints, run by this Python in a directory."""
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", command.replace("python ", f"{sys.executable} ", 1)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


async def test_the_plugin_works_as_printed(tmp_path: Path) -> None:
    """The rules refuse what the page says they refuse, with the words it prints."""
    [toml], [model], [rules, program], [commands], [printed] = blocks(
        "sync-plugin.md", "toml", "json", "python", "sh", "text"
    )
    (tmp_path / "model.json").write_text(model, encoding="utf-8")
    (tmp_path / "rules.py").write_text(rules, encoding="utf-8")
    (tmp_path / "add.py").write_text(program, encoding="utf-8")
    config = tmp_path / "tidelog.toml"
    config.write_text(toml.replace("model.json", str(tmp_path / "model.json")), encoding="utf-8")
    assert "rules:Rules" in await run(
        tmp_path, "PYTHONPATH=. python -m tidelog config check --json"
    )
    with ServerProcess(
        data_dir=tmp_path / "data",
        arguments=("--dev", "--config", str(config)),
        environment={"PYTHONPATH": str(tmp_path)},
    ) as server:
        server.start()
        lines = [line.replace("8080", str(server.port)) for line in commands.splitlines()]
        assert "".join([await run(tmp_path, line) for line in lines]) == printed
