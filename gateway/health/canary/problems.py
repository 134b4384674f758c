"""A failing canary in sentences: at which leg of its way, and what to look at. Pure."""

from __future__ import annotations

__all__ = ["canary_problem"]

from typing import TYPE_CHECKING, Final

from gateway.base.problem import Problem

if TYPE_CHECKING:
    from gateway.health.canary.account import CanaryAccount

FAILURES: Final = 2  # in a row: one falls into an election, or the restart of an EMQX node


def canary_problem(account: CanaryAccount, mqtt_topic: str, kafka_topic: str, timeout: str) -> Problem | None:
    """What is wrong with the canary now, if anything."""
    lost = account.last_lost
    if account.failures < FAILURES or lost is None:
        return None
    why = f": {lost.why.removesuffix('.')}" if lost.why else ""
    in_a_row = f"{account.failures} of its messages in a row"
    match lost.leg:
        case "publish":
            text = f"The canary cannot publish to MQTT topic {mqtt_topic} ({in_a_row}){why}."
            check = "mqtt.addresses and mqtt.username; the broker's log, and whether it takes devices."
        case "acknowledge":
            text = (
                f"The MQTT broker does not take the canary's messages to {mqtt_topic} ({in_a_row})"
                f"{why or f': no acknowledgement within {timeout}'}."
            )
            check = (
                "the right of mqtt.username to publish to canary.topic, and whether the gateway is subscribed to it."
            )
        case "kafka":
            text = (
                f"The canary's messages are acknowledged by the MQTT broker, and not in Kafka topic {kafka_topic} "
                f"within {timeout} ({in_a_row}): messages of devices may be as late."
            )
            check = "the other problems here; then the spool, the route's interceptors and its dead letters."
        case "read":
            text = f"Whether the canary's messages are in Kafka topic {kafka_topic} cannot be seen ({in_a_row}){why}."
            check = "the right of kafka.sasl.username to read that topic; traffic need not be affected."
    return Problem("canary-failing", "critical", text, check)
