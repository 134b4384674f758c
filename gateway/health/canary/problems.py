"""A failing canary in sentences: the leg of its way, and what to check. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.base.problem import Problem

if TYPE_CHECKING:
    from gateway.health.canary.account import CanaryAccount

FAILURES: Final = 2  # in a row: one falls into an election, or the restart of an EMQX node


def canary_problem(account: CanaryAccount, mqtt_topic: str, kafka_topic: str, timeout: str) -> Problem | None:
    """The problem after several losses in a row, by the leg of the last one; else None."""
    lost = account.last_lost
    if account.failures < FAILURES or lost is None:
        return None
    why = f": {lost.why.removesuffix('.')}" if lost.why else ""
    in_a_row = f"{account.failures} of its messages in a row"
    match lost.leg:
        case "publish":
            text = f"The canary cannot publish to MQTT topic {mqtt_topic} ({in_a_row}){why}."
            check = "check mqtt.addresses, mqtt.username and the broker's log."
        case "acknowledge":
            text = (
                f"The MQTT broker does not take the canary's messages to {mqtt_topic} ({in_a_row})"
                f"{why or f': no acknowledgement within {timeout}'}."
            )
            check = "check that mqtt.username may publish to canary.topic and that the gateway subscribes to it."
        case "kafka":
            text = (
                f"The canary's messages are acknowledged by the MQTT broker, but not in Kafka topic {kafka_topic} "
                f"within {timeout} ({in_a_row}): messages of devices may be as late."
            )
            check = "check the other problems here, then the spool, the route's interceptors and dead letters."
        case "read":
            text = f"The canary cannot read Kafka topic {kafka_topic} ({in_a_row}){why}."
            check = "check that kafka.sasl.username may read that topic; other messages may flow."
    return Problem("canary-failing", "critical", text, check)
