"""The filters of ``gateway tail``."""

from dataclasses import dataclass, field

from bridge.dead_letters.reading import DeadLetter, LoggedRecord
from bridge.errors import BridgeError
from bridge.intercept.expression import Expression
from bridge.message import MessageView
from bridge.record import Record
from bridge.routing.filters import matches
from config.error_words import words


def as_letter(record: LoggedRecord) -> DeadLetter:
    """An ordinary record as a dead letter, which has the same headers."""
    place, timestamp_ms, key, value, headers = record
    return DeadLetter((place,), 1, timestamp_ms, key, value, len(value or b""), tuple(headers), {})


def as_record(letter: DeadLetter) -> Record:
    """A record for an expression of the ``filter`` interceptor, as far as its headers give the message."""
    message = MessageView(
        letter.mqtt_topic or "", letter.flags, letter.properties(), letter.value or b"", letter.timestamp_ms
    )
    return Record(message, letter.place.topic, letter.key, letter.value, letter.headers, letter.timestamp_ms)


@dataclass(slots=True)
class TailFilter:
    """Filters of records: all must hold; of several values of one, any. ``unjudged`` counts records that ``where``
    could not judge; ``why`` is the reason for the first."""

    keys: tuple[bytes, ...] = ()
    devices: tuple[str, ...] = ()
    mqtt_filters: tuple[str, ...] = ()
    headers: tuple[tuple[str, bytes], ...] = ()
    where: Expression | None = None
    unjudged: int = field(default=0, init=False)
    why: str = field(default="", init=False)

    def takes(self, letter: DeadLetter) -> bool:
        if self.keys and letter.key not in self.keys:
            return False
        if self.devices and _device(letter) not in self.devices:
            return False
        topic = letter.mqtt_topic
        if self.mqtt_filters and (topic is None or not any(matches(text, topic) for text in self.mqtt_filters)):
            return False
        if self.headers and not all(pair in letter.headers for pair in self.headers):
            return False
        return self.where is None or self._holds(letter)

    def _holds(self, letter: DeadLetter) -> bool:
        assert self.where is not None
        try:
            return bool(self.where.evaluate(as_record(letter)))
        except (BridgeError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            self.unjudged += 1
            self.why = self.why or words(error)
            return False


def _device(letter: DeadLetter) -> str | None:
    """The device by its header; without the header the key, which often is the device."""
    if letter.device is not None:
        return letter.device
    return None if letter.key is None else letter.key.decode(errors="replace")
