"""What a refusal of a channels server looks like: well formed, and nothing of the inside in it."""

import json
import re

from support.channels.raw import Answer, Json

CODES = {
    400: {"invalid_input", "missing_channel_info", "limit_exceeded", "ai_invalid_transport_header"},
    401: {"auth_failed"},
    404: {"not_found", "app_not_found"},
    405: {"method_not_allowed"},
    413: {"payload_too_large"},
    422: {"feature_disabled"},
    431: {"headers_too_large"},
}
ERRORS = {4000, 4009, 4300, 4301, 4302}
LEAK = re.compile(
    r"(?i:Traceback|File \"|\.py\b|site-packages|sqlite|asyncpg|postgres|msgspec|Error\()"
    r"|SELECT |INSERT |UPDATE |DELETE |channels_message|/tmp/|/work/|/home/|/usr/|0x[0-9a-f]{6}"
)
"""What an answer must never hold: code, SQL and paths."""


def check_frame(frame: Json, expected: int | str, *, is_v2: bool) -> None:
    """An answer is well formed, says nothing of the inside and is the one that was due."""
    prefix = "sockudo" if is_v2 else "pusher"
    assert ("message_id" in frame) is is_v2
    assert not LEAK.search(json.dumps(frame)), frame
    if isinstance(expected, str):
        assert frame["event"] == f"{prefix}:{expected}", frame
        return
    assert frame["event"] == f"{prefix}:error", (frame, expected)
    if "reason" in frame["data"]:  # it says which event of a run was refused, and why
        assert frame.keys() - {"channel"} == {"event", "data", "message_id"}
        named = frame["data"].keys() - {"channel", "ai_code", "message_id"}
        assert named == {"code", "message", "reason"}
        assert frame.get("channel") == frame["data"].get("channel")
    else:
        assert frame.keys() - {"message_id"} == {"event", "data"}
        assert frame["data"].keys() == {"code", "message"}
    assert frame["data"]["code"] == expected, frame
    assert 0 < len(frame["data"]["message"]) < 300


def check_answer(answer: Answer, what: object) -> None:
    """Every refusal is the envelope, with the status it came with, and tells nothing else."""
    assert answer.status != 500, what
    assert answer.headers["content-type"].startswith("application/json"), (answer, what)
    body = answer.json
    assert not LEAK.search(answer.body.decode()), (answer, what)
    assert (
        {"error", "code", "status"}
        <= body.keys()
        <= {"error", "code", "status", "ai_code", "index"}
    )
    assert body["status"] == answer.status, (answer, what)
    assert body["code"] in CODES[answer.status], (answer, what)
    assert isinstance(body["error"], str)
    assert 0 < len(body["error"]) < 600
