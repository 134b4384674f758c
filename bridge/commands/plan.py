"""The settings of one ``[[commands]]`` as the dispatcher uses them: lengths in ns and ms, topics in parts."""

import re
from dataclasses import dataclass
from typing import Final, Self

from bridge.commands.tokens import Signer
from config.tables.commands import CommandSettings

_NO_CHARACTERS: Final = "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
UNSENDABLE: Final = re.compile(f"[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef{_NO_CHARACTERS}]")
"""What a text of MQTT cannot contain: for NUL, control characters and code points that are no characters a broker may
end the connection [MQTT-1.5.4], as Mosquitto does."""
_FORBIDDEN: Final = re.compile(f"[/+#$]|{UNSENDABLE.pattern}")
UNSIGNED: Final = "unsigned"


@dataclass(frozen=True, slots=True)
class CommandPlan:
    """The settings of one entry. ``signer`` makes tokens; without a secret nothing is awaited that could need one."""

    settings: CommandSettings
    signer: Signer
    expiry_ms: int
    answer_timeout_ns: int
    is_delivery_asked: bool

    @classmethod
    def from_settings(cls, settings: CommandSettings) -> Self:
        secret = settings.secret.get_secret_value() if settings.secret is not None else UNSIGNED
        return cls(
            settings=settings,
            signer=Signer(secret, settings.name),
            expiry_ms=round(settings.expiry.total_seconds() * 1000),
            answer_timeout_ns=round(settings.answer_timeout.total_seconds() * 1e9),
            is_delivery_asked=settings.confirm == "delivered",
        )

    def topic(self, device: str, subject: str, token: str) -> str:
        """The MQTT topic of a command. A level that would be empty, of a command without a subject, is left out."""
        # None of the values contains "$", so none is taken for a placeholder.
        made = self.settings.mqtt_topic.replace("${device}", device).replace("${subject}", subject)
        made = made.replace("${id}", token)
        return "/".join(level for level in made.split("/") if level) if made.endswith("/") or "//" in made else made

    def response_topic(self, device: str) -> str | None:
        """The response topic for MQTT 5 devices."""
        return self.settings.response_topic.replace("${device}", device) or None


def forbidden(text: str) -> str | None:
    """The first character that may not stand in a level of an MQTT topic, or leaves its place there; None without one.

    ``/`` begins another level, ``+`` and ``#`` are wildcards, and ``$`` begins the broker's own topics.
    """
    found = _FORBIDDEN.search(text)
    return found[0] if found else None
