"""Settings explain themselves and keep their secrets."""

import ast
import inspect
from pathlib import Path

import pytest
from msgspec.structs import fields

from tidelog.base.errors import ConfigError
from tidelog.base.settings.kinds import Section, mask_of, masked
from tidelog.base.settings.limits import Limits
from tidelog.channels.settings import (
    AiTransport,
    App,
    Channels,
    ConnectionRecovery,
    FirstApp,
    History,
    VersionedMessages,
)
from tidelog.config.settings import DEVELOPMENT_APP, Settings
from tidelog.store.settings import Postgresql
from tidelog.sync.settings import SyncSettings as Sync

SECTIONS = [
    Settings,
    Limits,
    Postgresql,
    Sync,
    App,
    Channels,
    VersionedMessages,
    AiTransport,
    History,
    ConnectionRecovery,
]


def documented(section: type[Section]) -> set[str]:
    """Names of the fields that are followed by a docstring in the source."""
    [definition] = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id
        for field, text in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_has_a_docstring(section: type[Section]) -> None:
    """Each field says what it means, because the operator's reference is made from it."""
    assert documented(section) == {field.name for field in fields(section)}


@pytest.mark.parametrize("section", [Limits, Postgresql])
def test_limits_are_positive_and_have_units(section: type[Section]) -> None:
    """A limit is a positive number whose name ends with what it counts."""
    units = ("_bytes", "_ms", "_messages", "_requests", "_entries", "_connections", "_headers")
    for field in fields(section):
        assert field.name.endswith((*units, "pool_size"))
        assert getattr(section(), field.name) >= 1


def test_defaults_fit_each_other() -> None:
    """A batch fits into the queue, a step of it into a send buffer, the largest body into both."""
    limits = Limits()
    assert limits.commit_batch_requests <= limits.commit_queue_requests
    assert limits.commit_batch_bytes <= limits.commit_queue_bytes
    assert limits.handover_entries < limits.send_buffer_messages
    assert limits.max_body_bytes < limits.send_buffer_bytes
    assert limits.max_body_bytes < limits.commit_queue_bytes


def kind_of(name: str) -> object:
    """The type a top-level setting is declared with."""
    return next(field.type for field in fields(Settings) if field.name == name)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", ""),
        ("/var/lib/tidelog.db", "/var/lib/tidelog.db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://user:s3cret@host:5432/db", "postgresql://user:********@host:5432/db"),
        ("postgresql://user:s3/c@ret@host/db", "postgresql://user:********@host/db"),
        ("postgresql://:s3cret@host/db", "postgresql://:********@host/db"),
        (
            "postgresql://host/db?password=s3cret&a=1",
            "postgresql://host/db?password=********&a=1",
        ),
        (
            "postgresql://host/db?sslPassword=s3cret",
            "postgresql://host/db?sslPassword=********",
        ),
    ],
)
def test_password_of_a_url_is_masked(url: str, shown: str) -> None:
    """Only the password of a store's URL is hidden, wherever it stands."""
    assert masked(kind_of("store"), url) == shown


def test_secret_is_masked_whole_and_only_if_set() -> None:
    """A secret shows stars of constant length; an unset one shows that it is unset."""
    kind = kind_of("admin_token")
    assert masked(kind, "a") == masked(kind, "a" * 50) == "********"
    assert masked(kind, "") == ""


def test_other_settings_are_not_masked() -> None:
    """A field that is not declared secret is shown as it is."""
    assert mask_of(kind_of("host")) is None
    assert mask_of(kind_of("port")) is None
    assert masked(kind_of("log_level"), "info") == "info"


def test_repr_masks_secrets() -> None:
    """Logging the settings leaks nothing."""
    text = repr(Settings(admin_token="s3cret", store="postgresql://u:s3cret@h/d"))
    assert "s3cret" not in text
    assert "port=8080" in text
    assert "limits=Limits(max_body_bytes=10485760" in text


def test_certificate_and_key_belong_together() -> None:
    """Half of a TLS configuration is refused rather than served in plain text."""
    with pytest.raises(ConfigError, match="set both or neither"):
        Settings(tls_certificate="c.pem")
    with pytest.raises(ConfigError, match="set both or neither"):
        Settings(tls_key="k.pem")
    Settings(tls_certificate="c.pem", tls_key="k.pem")


@pytest.mark.parametrize("store", ["mysql://h/d", "postgres://u:s3cret@h/d", "sqlite:///x"])
def test_other_engines_are_refused(store: str) -> None:
    """A URL of another scheme is not taken for the path of a file, and not repeated whole."""
    with pytest.raises(ConfigError, match="postgresql:// URL") as refused:
        Settings(store=store)
    assert "s3cret" not in str(refused.value)


def test_where_the_store_is() -> None:
    """An empty store is a file in the data directory, a path is itself, a URL is PostgreSQL."""
    assert Settings(data_dir="d").sqlite_path == Path("d/tidelog.db")
    assert Settings(store="x.db").sqlite_path == Path("x.db")
    assert not Settings(store="x.db").is_postgresql
    assert Settings(store="postgresql://h/d").is_postgresql
    assert Settings(data_dir="d").store_location == "d/tidelog.db"
    assert Settings(store="postgresql://h/d").store_location == "postgresql://h/d"


def app(**changes: str) -> App:
    """An application with an id, a key and a secret of its own."""
    return App(**{"id": "a", "key": "k", "secret": "s3cret", **changes})  # type: ignore[arg-type]


def test_defaults_of_channels_fit_each_other() -> None:
    """A stream can be resumed from its begin, and its message fits into the cache."""
    channels = Channels()
    recovery = channels.connection_recovery
    assert recovery.max_buffer_size >= channels.ai_transport.max_appends_per_message
    accumulated = channels.ai_transport.max_accumulated_message_bytes
    assert accumulated < channels.max_cached_text_bytes
    assert channels.max_presence_user_info_bytes < channels.max_message_bytes
    assert channels.max_user_data_bytes < channels.max_message_bytes


def test_ids_and_keys_of_apps_are_unique() -> None:
    """Two applications of one id or key could not be told apart."""
    Settings(apps=[app(), app(id="b", key="l")])
    with pytest.raises(ConfigError, match=r"apps\[1\]\.id: another app has a already"):
        Settings(apps=[app(), app(key="l")])
    with pytest.raises(ConfigError, match=r"apps\[2\]\.key: another app has k already"):
        Settings(apps=[app(), app(id="b", key="l"), app(id="c")])


def test_the_app_of_the_environment() -> None:
    """A secret alone makes an application; its id and key are as unique as those of the others."""
    first = FirstApp(secret="s3cret")
    made = App(id="main", key="main-key", secret="s3cret")
    assert Settings(app=first).served_apps == (made,)
    assert Settings(app=first, apps=[app()]).configured_apps == (made, app())
    assert Settings(app=FirstApp(id="shop")).configured_apps == ()
    with pytest.raises(ConfigError, match=r"apps\[0\]\.id: another app has main already"):
        Settings(app=first, apps=[app(id="main")])


def test_secrets_of_apps_are_masked() -> None:
    """The settings can be logged with their applications."""
    assert "s3cret" not in repr(Settings(app=FirstApp(secret="s3cret")))
    assert "s3cret" not in repr(Settings(apps=[app()]))
    assert "s3cret" not in repr(app())


def test_the_development_app() -> None:
    """It is served under `dev` only, and never beside an application of the same id or key."""
    assert Settings().served_apps == ()
    assert Settings(apps=[app()]).served_apps == (app(),)
    assert Settings(dev=True, apps=[app()]).served_apps == (app(), DEVELOPMENT_APP)
    for taken in (app(id=DEVELOPMENT_APP.id), app(key=DEVELOPMENT_APP.key)):
        assert Settings(dev=True, apps=[taken]).served_apps == (taken,)
