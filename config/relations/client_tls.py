"""Relations within a table of TLS settings, wherever it stands: ``mqtt.tls``, ``auth.redis.tls``."""

from collections.abc import Iterator

from config.relations.rules import Rule, steps, value, when
from config.schema import dotted
from config.settings import Settings
from config.tables.tls import TlsSettings


def tls_files(settings: Settings, at: str) -> Iterator[str]:
    """Refuses a key of a client certificate without the certificate; nothing without such a table."""
    tls: TlsSettings | None = value(settings, at)
    if tls is None or tls.certificate_file is not None:
        return
    for name in ("key_file", "key_password"):
        if getattr(tls, name) is not None:
            yield (
                f"<{at}.{name}> is given without {dotted(steps(at))}.certificate_file: a key alone identifies nobody; "
                "give the certificate too, or remove the key."
            )


def unverified(side: str) -> Rule:
    """The warning that a broker's certificate is not verified; ``side`` is the table, as "mqtt"."""
    return when(
        lambda settings: not value(settings, f"{side}.tls.verify"),
        f"<{side}.tls.verify>: others on the network can pretend to be the broker and read the password; name the "
        f"authority in {side}.tls.ca_file instead.",
    )
