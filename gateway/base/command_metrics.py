"""Metrics of commands, label ``commands``: the name of the ``[[commands]]``."""

from typing import Final

from gateway.base.instruments import MetricSet, counter, gauge, histogram

# Those of bridge.commands, which is loaded only where there are commands; a test compares.
OUTCOMES: Final = (
    "sent", "delivered", "succeeded", "rejected", "failed", "timed_out", "expired", "undeliverable", "refused",
)  # fmt: skip
UNMATCHED: Final = ("no token of ours", "already finished", "another device", "not asked for", "unreadable")
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


class CommandMetrics(MetricSet):
    """Metrics of a worker; ``gateway.base.metrics`` makes them part of its set."""

    # fmt: off
    commands_connected = gauge("gateway_commands_connected",
        "1 while the commands' MQTT connection is there, else 0.",
        "mqtt.addresses, the right of the client id to connect",
        unit="connections")
    commands_consumed = counter("gateway_commands_consumed_total",
        "Commands taken from Kafka in this life: equals finished, waiting, under way and given up together.",
        "none",
        unit="commands", labels=("commands",))
    commands_finished = counter("gateway_commands_finished_total",
        "Commands whose last status Kafka has, by that status.",
        "by outcome: answer_timeout (timed_out), expiry and the devices' connections (expired), when_offline and the"
        " gateway's rights (undeliverable), waiting_per_device and the dead letters (refused)",
        unit="commands", labels=("commands", "outcome"), fixed=tuple((outcome,) for outcome in OUTCOMES))
    commands_waiting = gauge("gateway_commands_waiting",
        "Commands held that have not been sent, or whose device was not there.",
        "in_flight, rate, the devices' connections",
        unit="commands", labels=("commands",))
    commands_under_way = gauge("gateway_commands_under_way",
        "Commands at the broker, at their device, or with a last status that Kafka does not have yet.",
        "answer_timeout",
        unit="commands", labels=("commands",))
    commands_given_up = counter("gateway_commands_given_up_total",
        "Unfinished commands whose partition another worker took over.",
        "none",
        unit="commands", labels=("commands",))
    commands_imbalance = gauge("gateway_commands_imbalance",
        "Consumed commands minus all others of the account: 0, else a defect.",
        "none: keep the log and report it",
        unit="commands", labels=("commands",))
    commands_sent_again = counter("gateway_commands_sent_again_total",
        "Commands published more than once: the connection broke, or nobody subscribed before.",
        "the broker's stability; when_offline",
        unit="commands", labels=("commands",))
    commands_deleted_unread = counter("gateway_commands_deleted_unread_total",
        "Commands that Kafka deleted before they were taken or finished.",
        "the topic's retention.ms and retention.bytes, above the longest expiry",
        unit="commands", labels=("commands",))
    commands_unmatched = counter("gateway_commands_unmatched_total",
        "Answers that change no command: repeated, forged, from another device, or with another status.",
        "the devices' software; the broker's rules about who may publish an answer",
        unit="answers", labels=("commands", "reason"), fixed=tuple((reason,) for reason in UNMATCHED))
    commands_oldest_seconds = gauge("gateway_commands_oldest_seconds",
        "Age of the oldest unfinished command; 0 without one.",
        "expiry, answer_timeout, the devices' connections",
        unit="seconds", labels=("commands",))
    commands_paused = gauge("gateway_commands_paused_partitions",
        "Partitions that are not read, because too many commands are held.",
        "max_waiting, max_waiting_bytes; in_flight",
        unit="partitions", labels=("commands",))
    commands_seconds = histogram("gateway_command_seconds",
        "Time from taking a command to its last status in Kafka.",
        "answer_timeout, in_flight, rate",
        unit="seconds", labels=("commands",), bounds=_SECONDS)
