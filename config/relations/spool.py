"""Relations of the spool's settings with Kafka's and the gateway's own."""

from __future__ import annotations

__all__ = ["REFUSED", "WARNED"]

from typing import TYPE_CHECKING

from config.relations.rules import Rule, View

if TYPE_CHECKING:
    from collections.abc import Iterator

_FRAME_BYTES = 64 * 1024  # names and numbers that the spool stores with a batch; a batch has rarely a hundredth of it


def _size(view: View) -> Iterator[str]:
    settings = view.settings
    if not settings.spool.enabled:
        return
    limit = view.say("spool", "max_bytes")
    if settings.kafka.batch_bytes + _FRAME_BYTES > settings.spool.max_bytes:
        yield (
            f"{view.say('kafka', 'batch_bytes')} and 64KiB for its description are more than {limit}: a full batch "
            "could never be spooled, and its partition would stand still; lower the first or raise the second."
        )
    elif settings.kafka.max_record_bytes + _FRAME_BYTES > settings.spool.max_bytes:
        yield (
            f"{view.say('kafka', 'max_record_bytes')} and 64KiB for its description are more than {limit}: the "
            "largest record could never be spooled, and its partition would stand still; lower the first or raise the "
            "second."
        )


def _turn(view: View) -> Iterator[str]:
    settings = view.settings
    if settings.spool.enabled and settings.spool.replay_max_bytes_per_second < settings.kafka.batch_bytes:
        yield (
            f"{view.say('spool', 'replay_max_bytes_per_second')} is less than {view.say('kafka', 'batch_bytes')}: "
            "not even a batch a second could be replayed; raise the first."
        )


REFUSED = (
    Rule(("spool.enabled", "spool.max_bytes", "kafka.batch_bytes", "kafka.max_record_bytes"), _size),
    Rule(("spool.enabled", "spool.replay_max_bytes_per_second", "kafka.batch_bytes"), _turn),
)


def _late(view: View) -> Iterator[str]:
    settings = view.settings
    if not settings.spool.enabled:
        return
    after = view.say("spool", "after")
    if settings.spool.after >= settings.kafka.delivery_timeout:
        yield (
            f"{after} is not shorter than {view.say('kafka', 'delivery_timeout')}: the producer would be replaced "
            "before the spool takes over, and the sessions' windows stand still all the while; lower the first."
        )
    if settings.spool.after >= settings.http.overdue_after:
        yield (
            f"{after} is not shorter than {view.say('http', 'overdue_after')}: /readyz turns red before the spool "
            "takes over; lower the first or raise the second."
        )


def _unused(view: View) -> Iterator[str]:
    if view.settings.spool.enabled:
        return
    for name in ("after", "max_bytes", "acknowledge", "replay_max_bytes_per_second"):
        if view.changed("spool", name):
            yield f"{view.say('spool', name)} has no effect: {view.say('spool', 'enabled')}."


def _nothing_forwarded(view: View) -> Iterator[str]:
    spool = view.settings.spool
    if spool.enabled and not spool.after and spool.acknowledge == "never":
        yield (
            f"{view.say('spool', 'after')} sends everything through the disk, but {view.say('spool', 'acknowledge')}: "
            "messages still wait at the MQTT broker until Kafka has them, so the disk costs time and bridges nothing; "
            'use "fsync", or another time.'
        )


WARNED = (
    Rule(("spool.enabled", "spool.after", "kafka.delivery_timeout", "http.overdue_after"), _late),
    Rule(
        (
            "spool.enabled",
            "spool.after",
            "spool.max_bytes",
            "spool.acknowledge",
            "spool.replay_max_bytes_per_second",
        ),
        _unused,
    ),
    Rule(("spool.enabled", "spool.after", "spool.acknowledge"), _nothing_forwarded),
)
