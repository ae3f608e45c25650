"""What a server that speaks TLS proves itself with."""

import ssl
from pathlib import Path

from tidelog.base.errors import ConfigError
from tidelog.config.settings import Settings


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """What the server proves itself with; None if it speaks plain HTTP."""
    for name in ("tls_certificate", "tls_key"):
        path = getattr(settings, name)
        if path and not Path(path).is_file():
            raise ConfigError(f"{name}: there is no file {path}")
    if not settings.tls_certificate:
        return None
    return server_context(settings.tls_certificate, settings.tls_key)


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """What a server proves itself with; the files are read once.

    Raises:
        ConfigError: they are no certificate and its key.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
        raise ConfigError(
            f"tls_certificate, tls_key: {certificate} and {key} are not a certificate chain and "
            f"its private key in PEM form: {error}"
        ) from error
    return context
