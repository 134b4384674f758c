"""Verdicts of ``gateway doctor`` over commands: pure functions over facts."""

from dataclasses import replace
from typing import Any

import pytest

from config.settings import Settings
from config.tables.commands import CommandSettings
from gateway.health.emqx.model import EmqxZone
from gateway.tools.doctor.command_checks import CommandFacts, judge_commands, judge_emqx
from gateway.tools.doctor.model import Check, Findings, Severity
from tests.unit.test_doctor_mqtt import zone

OK, WARN, FAIL, SKIPPED = Severity.OK, Severity.WARN, Severity.FAIL, Severity.SKIPPED
GROUP = "gateway-commands-switches"
WELL = CommandFacts(
    {"commands": 12, "statuses": 12},
    {
        "commands": {"cleanup.policy": "delete", "retention.ms": "86400000"},
        "statuses": {"cleanup.policy": "compact,delete"},
    },
    {GROUP: "Stable"},
)


def settings(**changes: Any) -> Settings:
    return Settings(
        commands=(CommandSettings(name="switches", topics=("commands",), status_topic="statuses", **changes),)
    )


def kafka(facts: CommandFacts) -> dict[str, Check]:
    findings = Findings("kafka")
    judge_commands(findings, settings(), facts)
    return {check.name: check for check in findings}


def configured(**changes: str) -> CommandFacts:
    return replace(WELL, configs={**WELL.configs, "commands": {**WELL.configs["commands"], **changes}})


def test_commands_that_are_well() -> None:
    assert {check.severity for check in kafka(WELL).values()} == {OK}
    assert kafka(configured(**{"retention.ms": "-1"}))["command_topics"].severity is OK, "kept for ever"


@pytest.mark.parametrize(("facts", "name", "severity", "says"), [
    (replace(WELL, partitions={"statuses": 12}), "command_topics", FAIL, "commands is not there"),
    (configured(**{"cleanup.policy": "compact"}), "command_topics", FAIL, "is compacted"),
    (configured(**{"retention.ms": "59999"}), "command_topics", FAIL, "before they expire (1m)"),
    (replace(WELL, configs={}, problems={"configs": "No."}), "command_topics", SKIPPED, "No."),
    (replace(WELL, partitions={"commands": 12}), "command_status", FAIL, "statuses is not there"),
    (replace(WELL, partitions={"commands": 12, "statuses": 6}), "command_status", FAIL, "has 6 partitions"),
    (
        replace(WELL, configs={**WELL.configs, "statuses": {"cleanup.policy": "delete"}}),
        "command_status", WARN, "not compacted",
    ),
    (replace(WELL, groups={}, problems={GROUP: "No right."}), "command_group", WARN, "No right."),
    (replace(WELL, groups={}), "command_group", SKIPPED, "no consumer group yet"),
    (replace(WELL, problems={"topics": "Silent."}), "command_status", SKIPPED, "Silent."),
])  # fmt: skip
def test_what_kafka_tells(facts: CommandFacts, name: str, severity: Severity, says: str) -> None:
    check = kafka(facts)[name]
    assert check.severity is severity, check.text
    assert says in check.text
    assert check.about == "switches"


def emqx(found: Any, limits: EmqxZone | None = None, **changes: Any) -> dict[str, Check]:
    findings = Findings("emqx")
    judge_emqx(findings, settings(**changes), found, limits or zone())
    return {check.name: check for check in findings}


@pytest.mark.parametrize("filter_", ["devices/#", "devices/+/req/#", "#", "+/+/req/+", "devices/+/req"])
def test_a_subscriber_to_the_commands_of_all_devices_hides_that_one_is_away(filter_: str) -> None:
    check = emqx([("monitor", filter_), ("pump-7", "devices/pump-7/req/#")])["command_subscribers"]
    assert check.severity is WARN
    assert check.facts["clients"] == ["monitor"]


@pytest.mark.parametrize("filter_", ["devices/pump-7/#", "devices/+/res/#", "+/pump-7/req/switch", "plants/#"])
def test_a_device_and_who_reads_other_topics_hide_nothing(filter_: str) -> None:
    assert emqx([("one", filter_)])["command_subscribers"].severity is OK


def test_subscriptions_that_are_unknown_are_not_judged() -> None:
    assert emqx("The key was refused.")["command_subscribers"].severity is SKIPPED


def test_what_waits_in_emqx_is_in_memory() -> None:
    assert "command_queue" not in emqx([])
    check = emqx([], zone(max_mqueue_len=1000), when_offline="queue")["command_queue"]
    assert check.severity is WARN
    assert "1000 messages a session" in check.text
    assert "command_queue" not in emqx([], zone(durable_sessions=True), when_offline="queue"), "on its disk"
