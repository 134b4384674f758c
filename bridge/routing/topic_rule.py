"""Which Kafka topics a route may write to. Names made from device data are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import BridgeError
from bridge.wire import DeadLetterReason
from config.errors import ConfigError
from config.tables.routes import ANY_TOPIC
from config.values.names import check_kafka_topic
from config.values.patterns import compile_pattern

if TYPE_CHECKING:
    from config.settings import RouteSettings


class RouteError(BridgeError):
    """A message that becomes a dead letter, because its route finds no topic or key. ``reason`` is its
    ``dlq.reason``."""

    def __init__(self, sentence: str, *, reason: DeadLetterReason, route: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.route = route


class TopicRule:
    """The Kafka topics that a route may write to, and those that its template has made so far."""

    def __init__(self, settings: RouteSettings, reserved: frozenset[str]) -> None:
        self._route = settings.name
        # Without the default pattern: it allows every topic that Kafka allows.
        self._allowed = None if settings.allowed_topics == ANY_TOPIC else compile_pattern(settings.allowed_topics)
        self._pattern = settings.allowed_topics
        self._limit = settings.max_topics  # different topics made since the start
        self._reserved = reserved
        self._seen: dict[bytes, str] = {}  # topics that passed, by what the template made

    def check_static(self, topic: str) -> str:
        """A topic from the settings. Raises ConfigError."""
        why = self._illegal(topic)
        if why:
            raise ConfigError(f"route {self._route!r}, topic: {topic!r} cannot be written to: {why}")
        return topic

    def check(self, made: bytes, maker: str = "the template") -> str:
        """A topic that ``maker`` made from a message. Raises RouteError unless it is allowed and within the limit."""
        topic = self._seen.get(made)
        if topic is not None:
            return topic
        topic = made.decode(errors="backslashreplace")
        why = self._illegal(topic)
        if not why and self._allowed is not None and not self._allowed.is_all_of(topic):
            why = f"allowed_topics = {self._pattern!r} does not match it"
        if why:
            raise RouteError(
                f"route {self._route!r}, topic: {maker} made {topic[:260]!r}, which cannot be written to: {why}",
                reason=DeadLetterReason.INVALID_TOPIC,
                route=self._route,
            )
        if len(self._seen) >= self._limit:
            raise RouteError(
                f"route {self._route!r}, topic: {topic!r} would be one more than the {self._limit} different topics "
                "(max_topics) made since the start; raise it, or look which device invents topics",
                reason=DeadLetterReason.TOPIC_LIMIT,
                route=self._route,
            )
        self._seen[made] = topic
        return topic

    def _illegal(self, topic: str) -> str:
        """Why no route may write to the topic; empty when it may."""
        if topic in self._reserved:
            return "the gateway keeps that topic for itself"
        try:
            check_kafka_topic(topic)
        except ValueError as error:
            return str(error)
        return ""
