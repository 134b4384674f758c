"""Topics of commands that could not keep what is promised are objected to, with what has to change."""

import pytest

from bridge.kafka.reader import TopicFacts
from config.tables.commands import CommandSettings
from gateway.components.command_topics import objections

HOUR_MS = 3_600_000


def objected(
    *, partitions: int = 3, statuses: int = 3, retention_ms: int | None = HOUR_MS, policy: str | None = "delete"
) -> list[str]:
    commands = CommandSettings(name="c", topics=("commands",), status_topic="status", expiry="1h")
    facts = {
        "commands": TopicFacts("commands", partitions, retention_ms, policy),
        "status": TopicFacts("status", statuses, -1, "compact,delete"),
    }
    return list(objections(facts, commands))


@pytest.mark.parametrize("facts", [{}, {"statuses": 4}, {"retention_ms": -1}, {"retention_ms": None, "policy": None}])
def test_topics_that_keep_what_is_promised_pass(facts: dict[str, int]) -> None:
    assert objected(**facts) == []


@pytest.mark.parametrize(("facts", "says"), [
    ({"policy": "compact"}, "Topic commands is compacted"),
    ({"policy": "compact,delete"}, "Topic commands is compacted"),
    ({"retention_ms": HOUR_MS - 1}, "Topic commands keeps records for 3,599,999 ms, less than commands.expiry (1h)"),
    ({"retention_ms": 0}, "keeps records for 0 ms"),
    ({"statuses": 2}, "Topic status has 2 partitions, and commands has 3"),
])  # fmt: skip
def test_others_are_objected_to(facts: dict[str, int], says: str) -> None:
    (sentence,) = objected(**facts)
    assert says in sentence
    assert sentence.endswith(".")
