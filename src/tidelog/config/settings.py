"""What an operator can set, all of it.

A section of `tidelog.toml` is a Struct in the room whose section it is; `base.settings.reading`
reads any Struct built from the same parts (the kinds of `base.settings.kinds`, sections, `list` of
a Struct for an array of tables), so a new setting is a new field and nothing else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field
from msgspec.structs import replace

from tidelog.base.errors import ConfigError
from tidelog.base.settings.kinds import (
    Secret,
    SecretUrl,
    Section,
)
from tidelog.base.settings.limits import Limits, PerAddress
from tidelog.base.settings.reading import Loaded, load_as
from tidelog.channels.settings import App, Channels, FirstApp
from tidelog.config.lake_location import LakeLocation, lake_location
from tidelog.mesh.settings import MeshSettings
from tidelog.store.settings import Postgresql, Sqlite
from tidelog.sync.settings import SyncSettings

DEVELOPMENT_ADMIN_TOKEN = "dev-admin-token"  # noqa: S105 - everybody may know it, as below
"""Under `dev` without an `admin_token`: what meshes are administered with."""

DEVELOPMENT_JWT_SECRET = "everybody knows this development secret"  # noqa: S105 - as its text says
"""Under `dev` without a way to verify tokens of sync: what they are signed with."""

DEVELOPMENT_MODEL = Path(__file__).with_name("development_model.json")
"""Under `dev` without a `model_file`: what may be written to sync with those tokens."""

DEVELOPMENT_APP = App(
    id="app-id",
    alias="1",
    key="app-key",
    secret="app-secret",  # noqa: S106 - everybody may know it: it is served under `dev` only
    enable_client_messages=True,
    enable_user_authentication=True,
)
"""What `dev` serves besides the configured applications, so that a client library can be tried
without any configuration."""


class Pipeline(Section, frozen=True, kw_only=True):
    """`[pipeline]`: where what Spark makes of the log is."""

    lake: str = ""
    """Directory of the lake, as a path or a `file:` URL, or an object store, as
    `s3://BUCKET/FOLDER`; empty for `lake` in `data_dir`. If it is there when the server starts, the
    server serves `GET /search` from it; it changes no content, only puts locks beside it."""

    cache: str = ""
    """Directory for copies of the files of a lake on an object store, and for its search index;
    empty for `lake-cache` in `data_dir`. It takes as much room as the tables do."""

    retention_days: Annotated[int, Meta(ge=0, le=36500)] = 0
    """Content in the lake is removed when it is older than so many full days (UTC); 0 keeps it for
    ever. Positions, times, actors and digests stay."""

    deliver_secret: Secret = ""
    """What `tidelog pipeline deliver` signs batches of changes with; it needs one."""

    def __post_init__(self) -> None:
        """Refuse a location that would silently become a directory of that name."""
        lake_location(self.lake, "pipeline.lake", Path(self.cache))


class Tracing(Section, frozen=True, kw_only=True):
    """`[tracing]`: OpenTelemetry traces; off unless an endpoint is set."""

    endpoint: SecretUrl = ""
    """Base URL of a collector that takes OTLP over HTTP, such as `http://127.0.0.1:4318`. Needs
    `pip install 'tidelog[otel]'`."""

    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the traces that begin here and are sent; a caller's own trace decides itself."""

    def __post_init__(self) -> None:
        """Refuse what is no URL before anything is opened."""
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError("tracing.endpoint: give an http:// or https:// URL of a collector")


class Settings(Section, frozen=True, kw_only=True):
    """`tidelog.toml`; see `load` for where else a value can come from."""

    data_dir: Annotated[str, Meta(min_length=1)] = "tidelog-data"
    """Directory for everything the server writes; relative to the working directory."""

    store: SecretUrl = ""
    """Where the log lives: empty for `tidelog.db` in `data_dir`, a path of an SQLite file, or a
    `postgresql://` URL. The URL may hold a password, which is masked wherever it is shown."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address to listen on. Only this machine by default: nobody should publish a server by
    starting it."""

    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    """TCP port for HTTP and WebSocket; 0 takes a free one and prints it."""

    workers: Annotated[int, Meta(ge=1, le=256)] | Literal["auto"] = 1
    """Processes that have connections. 1 is one process with everything; with more, one further
    process owns the log, and a supervisor runs them all. `auto` is one less than there are
    processors."""

    compression: bool = False
    """Whether WebSocket messages of 128 bytes to 64 KiB are compressed for clients that ask for it
    (permessage-deflate), as every browser does. A token's frame becomes half as large, and each
    message takes some more CPU, once for all who receive it. Worth it where traffic is paid for."""

    tls_certificate: str = ""
    """PEM file with the certificate chain; empty for plain HTTP. Needs `tls_key`."""

    tls_key: str = ""
    """PEM file with the private key of `tls_certificate`."""

    admin_token: Secret = ""
    """Bearer token for administration. `tidelog serve` does not start without it, unless `dev`;
    see `tidelog.config.credentials`."""

    dev: bool = False
    """Development: a PostgreSQL with `fsync` or `synchronous_commit` off is accepted, the
    application `app-id` with key `app-key` and secret `app-secret` is served, and so is sync with a
    secret that everybody knows."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is logged."""

    log_format: Literal["text", "json"] = "text"
    """`text` for people, `json` with one object per line for collectors."""

    limits: Limits = Limits()
    """Section `[limits]`."""

    per_address: PerAddress = PerAddress()
    """Section `[per_address]`."""

    sqlite: Sqlite = Sqlite()
    """Section `[sqlite]`."""

    postgresql: Postgresql = Postgresql()
    """Section `[postgresql]`."""

    sync: SyncSettings = SyncSettings()
    """Section `[sync]`."""

    channels: Channels = Channels()
    """Section `[channels]`."""

    mesh: MeshSettings = MeshSettings()
    """Section `[mesh]`."""

    pipeline: Pipeline = Pipeline()
    """Section `[pipeline]`."""

    tracing: Tracing = Tracing()
    """Section `[tracing]`."""

    app: FirstApp = FirstApp()
    """Section `[app]`: an application from `TIDELOG_APP_SECRET`; it is served beside `apps`."""

    apps: list[App] = field(default_factory=list)
    """Tables `[[apps]]`: the applications of the channels surface. Ids and keys are unique."""

    def __post_init__(self) -> None:
        """Refuse values that are right alone and wrong together."""
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("tls_certificate and tls_key belong together: set both or neither")
        if "://" in self.store and not self.is_postgresql:
            scheme = self.store.partition("://")[0]
            raise ConfigError(
                f"store: no engine for {scheme[:40]}://; use a path or a postgresql:// URL"
            )
        for name in ("id", "key"):
            taken = {getattr(self.app, name)} if self.app.secret else set()
            for index, app in enumerate(self.apps):
                value = getattr(app, name)
                if value in taken:
                    raise ConfigError(f"apps[{index}].{name}: another app has {value} already")
                taken.add(value)

    @property
    def configured_apps(self) -> tuple[App, ...]:
        """The applications of `[app]` and `[[apps]]`."""
        first = self.app
        if not first.secret:
            return tuple(self.apps)
        return (App(id=first.id, key=first.key, secret=first.secret), *self.apps)

    @property
    def served_apps(self) -> tuple[App, ...]:
        """The configured applications; under `dev` also the one everybody knows.

        An application configured with its id or key takes its place.
        """
        apps, known = self.configured_apps, DEVELOPMENT_APP
        if not self.dev or any(app.id == known.id or app.key == known.key for app in apps):
            return apps
        return (*apps, known)

    @property
    def served_sync(self) -> SyncSettings:
        """Section `[sync]`; under `dev`, if it names no way to verify tokens, with a known one."""
        if not self.dev or self.sync.is_served:
            return self.sync
        model_file = self.sync.model_file or str(DEVELOPMENT_MODEL)
        return replace(self.sync, jwt_secret=DEVELOPMENT_JWT_SECRET, model_file=model_file)

    @property
    def administration_token(self) -> str:
        """What opens administration; empty if nothing does, and then no mesh is served."""
        return self.admin_token or (DEVELOPMENT_ADMIN_TOKEN if self.dev else "")

    @property
    def lake(self) -> LakeLocation:
        """Where the lake is, whether it is there or not."""
        if not self.pipeline.lake:
            return LakeLocation(Path(self.data_dir) / "lake")
        return lake_location(self.pipeline.lake, "pipeline.lake", self.lake_cache)

    @property
    def lake_path(self) -> Path:
        """Directory of the lake, or of the copies of its files."""
        return self.lake.root

    @property
    def has_lake(self) -> bool:
        """Whether there is one to be searched, or was asked for."""
        try:
            return bool(self.pipeline.lake) or self.lake_path.is_dir()
        except PermissionError as error:  # nobody asked: it is the directory that is closed
            raise PermissionError(error.errno, error.strerror, self.data_dir) from None

    @property
    def lake_cache(self) -> Path:
        """Directory for copies of files of lakes on object stores."""
        return Path(self.pipeline.cache or Path(self.data_dir) / "lake-cache")

    @property
    def is_postgresql(self) -> bool:
        """Whether `store` names a PostgreSQL database rather than a file."""
        return self.store.startswith("postgresql://")

    @property
    def sqlite_path(self) -> Path:
        """The SQLite file, when `store` names one."""
        return Path(self.store) if self.store else Path(self.data_dir) / "tidelog.db"

    @property
    def store_location(self) -> str:
        """What `tidelog.store.open_store` opens: a path or a `postgresql://` URL."""
        return self.store or str(self.sqlite_path)


def load(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> Loaded[Settings]:
    """The server's settings; see `tidelog.base.settings.reading.load_as`."""
    return load_as(Settings, flags, environ, file)
