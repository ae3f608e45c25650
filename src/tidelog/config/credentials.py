"""What a server must know and nobody else before it listens: the admin token and an app's secret.

Only `--dev`, which listens on this machine alone, starts without them. The refusal says what is
missing or weak and how to set it; it never repeats a secret.
"""

import re
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, urlsplit

from tidelog.base.errors import ConfigError
from tidelog.config.settings import Settings

MIN_SECRET_LENGTH = 16
"""Whoever sees one signature can guess the secret behind it on his own machine, as fast as that is,
so it must be too long to guess: 16 random letters are 96 bits, what fits a memory is far less."""

_MIN_VARIETY = 5
"""Different characters of a secret. Of 16 random hexadecimal digits fewer than this are different
in less than one of a million, and a key held down has one."""

_EXAMPLES = (
    "adminsecret",
    "admintoken",
    "alongrandomtext",
    "appsecret",
    "asecretofatleastthirtytwobytes",
    "changeit",
    "changeme",
    "devadmintoken",
    "example",
    "placeholder",
    "replaceme",
    "yoursecret",
    "yourtoken",
)
"""Beginnings, without punctuation, of what documentation puts where a secret belongs."""

_PADDED = re.compile(r"<.*>|\$\{.*\}|\s+")
"""A secret that is nothing but a gap to fill in, a variable nobody replaced, or blanks."""

_WORDS = re.compile(
    "admin|app|change|demo|dev|here|key|letmein|me|my|password|secret|test|the|tidelog|token|user|"
    "welcome|your"
)
_ROWS = ("01234567890123456789", "abcdefghijklmnopqrstuvwxyz", "qwertyuiopasdfghjklzxcvbnm")
_RUN = 4
_MIN_OWN = 8
"""Characters of a secret beside the words and the runs of neighbouring keys that everybody tries
first. A secret of 16 random ones has fewer about never."""

_HOW = """\
Make two secrets, a different one for each, with
  python -c 'import secrets; print(secrets.token_urlsafe(32))'
and set them as environment variables
  export TIDELOG_ADMIN_TOKEN=<the first>
  export TIDELOG_APP_SECRET=<the second>
or in tidelog.toml
  admin_token = "<the first>"
  [app]
  secret = "<the second>"
(more apps: tables [[apps]] with id, key and secret). To try tidelog on this machine only, without
any secret: tidelog serve --dev"""


def require_credentials(settings: Settings) -> None:
    """Refuse settings that would serve without secrets, or with secrets that anybody can guess."""
    problems = tuple(credential_problems(settings))
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise ConfigError(f"the server starts only when its secrets are set:{listed}\n{_HOW}")


def secrets_of(settings: Settings) -> Sequence[str]:
    """What no log line may show; the secret of `--dev` is none, and is announced."""
    try:
        password = urlsplit(settings.store).password if settings.is_postgresql else None
    except ValueError:  # opening the store says what is wrong with it, without quoting it
        password = None
    return (
        settings.admin_token,
        settings.sync.jwt_secret,
        settings.channels.proxy_token,
        *(app.secret for app in settings.configured_apps),
        password or "",
        unquote(password or ""),
    )


def credential_problems(settings: Settings) -> Iterator[str]:
    """What keeps a server with these settings from starting, in words without any secret."""
    if settings.dev:
        return
    if not settings.admin_token:
        yield "admin_token is not set"
    elif weakness := _weakness(settings.admin_token):
        yield f"admin_token {weakness}"
    apps = [app for app in settings.configured_apps if app.enabled]
    if not apps:
        yield "no app has a secret: neither app.secret nor [[apps]] is set"
    for app in apps:
        if weakness := _weakness(app.secret):
            yield f"the secret of app {app.id} {weakness}"
        elif app.secret == settings.admin_token:
            yield f"the secret of app {app.id} is the admin_token: whoever signs could administer"
    further = {
        "channels.proxy_token": settings.channels.proxy_token,
        "sync.jwt_secret": settings.sync.jwt_secret,
    }
    for key, secret in further.items():
        if secret and (weakness := _weakness(secret)):
            yield f"{key} {weakness}"


def _weakness(secret: str) -> str | None:
    """Why this can be guessed, or None."""
    plain = re.sub(r"[^a-z0-9]", "", secret.lower())
    if _PADDED.fullmatch(secret) or plain.startswith(_EXAMPLES):
        return "is an example that everybody can read"
    if len(secret) < MIN_SECRET_LENGTH:
        return f"is shorter than {MIN_SECRET_LENGTH} characters"
    if len(set(secret)) < _MIN_VARIETY:
        return f"has fewer than {_MIN_VARIETY} different characters"
    if _own_characters(plain) < _MIN_OWN:
        return "is made of words or neighbouring keys that everybody tries first"
    return None


def _own_characters(plain: str) -> int:
    """How many characters belong neither to a common word nor to a run of neighbouring keys."""
    rows = (*_ROWS, *(row[::-1] for row in _ROWS))
    is_run = [False] * len(plain)
    for begin in range(len(plain) - _RUN + 1):
        if any(plain[begin : begin + _RUN] in row for row in rows):
            is_run[begin : begin + _RUN] = [True] * _RUN
    left = "".join(" " if run else each for each, run in zip(plain, is_run, strict=True))
    return len(_WORDS.sub("", left).replace(" ", ""))
