"""What a new user waits for, from a fresh clone and with empty caches.

Clones the repository as it is committed, gives every installer an empty cache, runs the README's
lines as printed and watches the page in Chromium. With `--demo` it then runs `scripts/run --exit`
in another clone. Prints one JSON document. Times are of the wall; how fast the index and the
network are is part of them, and other load of the machine too.

Example: python bench/first_minutes.py --demo
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.async_api import async_playwright, expect

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.dashboard.chromium import chromium_path  # noqa: E402
from support.docs.quickstart import Quickstart  # noqa: E402

INSTALL_SECONDS = 1800.0
WAIT_MS = 120_000
BYTECODE = ".pyc"
INSTALLERS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence.pth")
"""What a new virtual environment has before anything is installed."""


def clone(folder: Path) -> Path:
    """The repository as it is committed, without its history."""
    command = ["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(folder)]
    subprocess.run(command, check=True)
    return folder


def occupied(*folders: Path) -> int:
    """Bytes on the disk of everything below folders; what two names share counts once."""
    found: dict[int, int] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            at = path.lstat()
            found[at.st_ino] = at.st_blocks * 512
    return sum(found.values())


def installed(environment: Path) -> dict[str, int]:
    """Bytes of the packages in an environment, without the installers it was made with."""
    [site] = (environment / "lib").glob("python*/site-packages")
    files = [
        path
        for path in site.rglob("*")
        if path.is_file() and not path.relative_to(site).parts[0].startswith(INSTALLERS)
    ]
    compiled = sum(path.stat().st_size for path in files if path.suffix == BYTECODE)
    whole = sum(path.stat().st_size for path in files)
    return {"package_bytes": whole - compiled, "bytecode_bytes": compiled}


def cpu_seconds() -> float:
    """Of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def in_the_page(quickstart: Quickstart, programs: Path) -> dict[str, float]:
    """Seconds from the start of the server to what a reader sees."""
    began = time.perf_counter()
    seconds: dict[str, float] = {}
    path = await asyncio.to_thread(chromium_path)

    def note(what: str) -> None:
        seconds[what] = round(time.perf_counter() - began, 2)

    with quickstart.serving(programs):
        note("server_ready")
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=path,
                args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
            )
            page = await browser.new_page()
            await page.goto(quickstart.page)
            note("page_open")
            answering = quickstart.answering(programs)
            await expect(page.locator("#answer")).not_to_contain_text("Waiting", timeout=WAIT_MS)
            note("first_word")
            await expect(page.locator("#answer")).to_have_text(quickstart.expected, timeout=WAIT_MS)
            note("whole_answer")
            await asyncio.to_thread(answering.wait)
            await browser.close()
    return seconds


def quick(folder: Path) -> dict[str, Any]:
    """The README's lines."""
    began, cpu = time.perf_counter(), cpu_seconds()
    reader = Quickstart(clone(folder))
    programs = reader.installed(INSTALL_SECONDS)
    install_seconds, install_cpu = time.perf_counter() - began, cpu_seconds() - cpu
    seconds = asyncio.run(in_the_page(reader, programs))
    return {
        "install_seconds": round(install_seconds, 1),
        "install_cpu_seconds": round(install_cpu, 1),
        **installed(folder / ".venv"),
        "after_install_seconds": seconds,
        "total_seconds": round(install_seconds + seconds["whole_answer"], 1),
    }


def demo(folder: Path, caches: Path) -> dict[str, Any]:
    """`scripts/run --exit`, and how long it was silent at most."""
    clone(folder)
    began = last = time.perf_counter()
    silence = install_seconds = 0.0
    with subprocess.Popen(
        [folder / "scripts/run", "--exit", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            now = time.perf_counter()
            silence, last = max(silence, now - last), now
            if line.startswith("install: done"):
                install_seconds = now - began
            sys.stderr.write(line)
    return {
        "exit_code": process.returncode,
        "install_seconds": round(install_seconds, 1),
        "total_seconds": round(time.perf_counter() - began, 1),
        "longest_silence_seconds": round(silence, 1),
        "environment_bytes": occupied(folder / ".venv"),
        "environment_and_caches_bytes": occupied(folder / ".venv", caches),
    }


def main(*, with_demo: bool) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="tidelog-first-minutes-") as name:
        home, caches = Path(name), Path(name) / "caches"
        os.environ["PIP_CACHE_DIR"] = str(caches / "pip")
        os.environ["UV_CACHE_DIR"] = str(caches / "uv")
        document: dict[str, Any] = {
            "bench": "first_minutes",
            "conditions": {
                "python": platform.python_version(),
                "machine": platform.machine(),
                "cpus": os.cpu_count(),
                "load_average_before": [round(load, 2) for load in os.getloadavg()],
            },
            "readme": quick(home / "readme"),
        }
        if with_demo:
            document["demo"] = demo(home / "demo", caches)
        print(json.dumps(document, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demo", action="store_true", help="also scripts/run --exit: minutes")
    main(with_demo=parser.parse_args().demo)
