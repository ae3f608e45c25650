"""What a server must know before it starts, and what it says when it does not."""

import secrets

import pytest

from tidelog.base.errors import ConfigError
from tidelog.channels.settings import App, Channels, FirstApp
from tidelog.config.credentials import MIN_SECRET_LENGTH, credential_problems, require_credentials
from tidelog.config.settings import Settings
from tidelog.sync.settings import SyncSettings as Sync

TOKEN = "jB0qN-6e8zYw3vKx_admin"
SECRET = "Zr4t7Lw1Pq9s_Mh2-secret"


def settings(token: str = TOKEN, secret: str = SECRET, **more: object) -> Settings:
    """Settings that a server starts with, unless something else is given."""
    return Settings(admin_token=token, app=FirstApp(secret=secret), **more)  # type: ignore[arg-type]


def problems(given: Settings) -> list[str]:
    """What keeps a server from starting."""
    return list(credential_problems(given))


def test_a_token_and_a_secret_are_enough() -> None:
    """Nothing more is asked for; the app may stand in the file instead."""
    assert problems(settings()) == []
    assert problems(settings(secret="", apps=[App(id="a", key="k", secret=SECRET)])) == []


def test_each_missing_credential_is_named() -> None:
    """The refusal tells of the token and of the app, whichever is missing, and how to set it."""
    assert [text.split()[0] for text in problems(Settings())] == ["admin_token", "no"]
    assert problems(settings(token="")) == ["admin_token is not set"]
    [without_app] = problems(settings(secret=""))
    assert without_app.startswith("no app has a secret")
    closed = App(id="a", key="k", secret=SECRET, enabled=False)
    assert problems(settings(secret="", apps=[closed])) == [without_app]
    with pytest.raises(ConfigError) as refusal:
        require_credentials(Settings())
    for needed in (
        "python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        "export TIDELOG_ADMIN_TOKEN=",
        "export TIDELOG_APP_SECRET=",
        "admin_token = ",
        "[app]",
        "tidelog serve --dev",
    ):
        assert needed in str(refusal.value)


def test_development_needs_none() -> None:
    """It listens on this machine only and says what it opens."""
    require_credentials(Settings(dev=True))


@pytest.mark.parametrize(
    ("weak", "reason"),
    [
        ("q8!", "shorter than 16"),
        ("Zr4t7Lw1Pq9s_Mh", "shorter than 16"),
        ("change-me", "example"),
        ("Change_Me-change-me-now", "example"),
        ("a long random text", "example"),
        ("a secret of at least thirty-two bytes", "example"),
        ("dev-admin-token", "example"),
        ("app-secret", "example"),
        ("<the first>", "example"),
        ("${TIDELOG_APP_SECRET}", "example"),
        (" " * 20, "example"),
        ("a" * 40, "different characters"),
        ("passwordpassword", "everybody tries"),
        ("1234567890123456", "everybody tries"),
        ("0123456789abcdef", "everybody tries"),
        ("qwertyuiopasdfgh", "everybody tries"),
        ("my-admin-token-here", "everybody tries"),
    ],
)
def test_what_can_be_guessed_is_refused_and_not_repeated(weak: str, reason: str) -> None:
    """Everywhere a secret is set: of the admin, of either kind of app, of the proxy, of tokens."""
    for given, named in [
        (settings(token=weak), "admin_token"),
        (settings(secret=weak), "app main"),
        (settings(apps=[App(id="shop", key="k", secret=weak)]), "app shop"),
        (settings(channels=Channels(proxy_token=weak)), "channels.proxy_token"),
        (settings(sync=Sync(jwt_secret=weak)), "sync.jwt_secret"),
    ]:
        [problem] = problems(given)
        assert reason in problem
        assert named in problem
        assert weak.strip() == "" or weak not in problem


def test_one_secret_for_both_is_refused() -> None:
    """An app's servers sign with its secret: they would be administrators."""
    [problem] = problems(settings(secret=TOKEN))
    assert "is the admin_token" in problem


def test_the_generator_that_is_named_passes() -> None:
    """The printed command makes what the check accepts."""
    for _ in range(200):
        assert problems(settings(secrets.token_urlsafe(32), secrets.token_urlsafe(32))) == []
    assert len(secrets.token_urlsafe(12)) >= MIN_SECRET_LENGTH
