"""`tidelog.js` against a server that is played by the test: gaps, order, limits, errors."""

import re
import subprocess

from support import node

SECONDS = 120.0


def test_every_case_of_the_module_passes() -> None:
    """They are in `tidelog_js/unit.test.mjs`, and run under Node's own runner."""
    program, _ = node.programs()
    ended = subprocess.run(
        [program, "--test", "--test-timeout=60000", str(node.TIDELOG_JS / "unit.test.mjs")],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-8000:]
    counted = dict(re.findall(r"^\S+ (pass|fail|skipped|todo) (\d+)$", ended.stdout, re.MULTILINE))
    assert int(counted["pass"]) > 30
    assert {counted["fail"], counted["skipped"], counted["todo"]} == {"0"}
