"""The how-to "an offline task list": its files and its commands, as printed."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from tidelog.testing.process import ServerProcess

HOWTO = (Path(__file__).parents[3] / "docs/howto/offline-task-list.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", HOWTO, re.DOTALL)


async def test_the_offline_task_list_works_as_printed(tmp_path: Path) -> None:
    """Offline drafts are shown, committed on connection, seen by another, refused when wrong."""
    [toml], [model], [program], [commands] = map(blocks, ("toml", "json", "python", "sh"))
    assert len([line for line in program.splitlines() if line]) <= 60, "the title promises it"
    (tmp_path / "model.json").write_text(model, encoding="utf-8")
    (tmp_path / "tasks.py").write_text(program, encoding="utf-8")
    config = tmp_path / "tidelog.toml"
    config.write_text(toml.replace("model.json", str(tmp_path / "model.json")), encoding="utf-8")
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--config", str(config))) as server:
        server.start()
        outputs = []
        for line in commands.splitlines():
            command = line.partition("#")[0].strip().replace("8080", str(server.port))
            script = command.replace("python ", f"{sys.executable} ", 1)
            done = await asyncio.to_thread(
                subprocess.run,
                ["bash", "-c", script],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            outputs.append(done.stdout)
    offline, committed, finished, refused = outputs
    assert offline == "[ ] Buy milk\n[ ] Call Bo\n(2 waiting for the server)\n"
    assert committed.startswith("[ ] Buy milk\n[ ] Call Bo\n")
    assert finished == "[x] Buy milk\n[ ] Call Bo\n(0 waiting for the server)\n"
    assert "not stored: event.payload.options.id" in refused
    assert "[x] Buy milk" in refused
