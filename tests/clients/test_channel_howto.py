"""The how-to of channels: its programs and its commands, as printed."""

import asyncio
import re
import shlex
import sys
from asyncio.subprocess import PIPE
from itertools import pairwise
from pathlib import Path

import httpx

from tidelog.testing.process import ServerProcess

HOWTO = Path(__file__).parents[2] / "docs/howto/stream-llm-answer.md"
WAIT_SECONDS = 30.0


async def test_an_answer_is_streamed_as_printed(tmp_path: Path) -> None:
    """The watcher sees the text grow to the whole answer; the late one sees it whole at once."""
    text = HOWTO.read_text(encoding="utf-8")
    answer, watch = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    serve, commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    (tmp_path / "answer.py").write_text(answer, encoding="utf-8")
    (tmp_path / "watch.py").write_text(watch, encoding="utf-8")
    command = shlex.split(serve)
    assert command[:2] == ["tidelog", "serve"]

    async def start(line: str) -> asyncio.subprocess.Process:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "python"
        return await asyncio.create_subprocess_exec(
            sys.executable, "-u", *arguments, cwd=tmp_path, stdout=PIPE, stderr=PIPE
        )

    async def output(process: asyncio.subprocess.Process) -> list[str]:
        async with asyncio.timeout(WAIT_SECONDS):
            out, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return out.decode().splitlines()

    with ServerProcess(data_dir=tmp_path / "data", arguments=tuple(command[2:])) as server:
        await asyncio.to_thread(server.start)
        first, second, third = commands.replace("8080", str(server.port)).splitlines()
        watching = await start(first.replace(" & ", " "))
        async with asyncio.timeout(WAIT_SECONDS), httpx.AsyncClient(verify=False) as http:
            # Whoever comes late sees the answer whole, as the last command shows.
            connected = 'tidelog_connections{surface="channels"} 1.0'
            while connected not in (await http.get(f"{server.url}/metrics")).text:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
        answering = await start(second)
        [told] = await output(answering)
        grown = await output(watching)
        late = await output(await start(third))
    assert told.startswith("answered as ")
    [whole] = re.findall(r'ANSWER = "(.*)"', answer)
    assert grown[-1].rstrip() == f"answer: {whole}"
    assert len(grown) > 3
    texts = [line for line in grown if line.startswith("answer: ")]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert [line.rstrip() for line in late] == [
        "question: Why does the tide come in?",
        f"answer: {whole}",
    ]
