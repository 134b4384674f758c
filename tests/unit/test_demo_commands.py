"""The demo's commands: what is sent to whom, and what became of each."""

import json
from itertools import islice
from typing import Any

from config.errors import ExitStatus
from gateway.devices.commanded import CommandAccount, examine_commands, render_commands
from gateway.local.demo.commander import _orders

COMMANDS = [(f"commands/0:{number}", b"{}") for number in range(6)]


def statuses(*found: tuple[int, str], terminal: bool = True, **more: Any) -> list[tuple[str, bytes]]:
    return [
        ("", json.dumps({"command": f"commands/0:{n}", "status": status, "terminal": terminal, **more}).encode())
        for n, status in found
    ]


def test_every_command_is_finished_waiting_or_under_way() -> None:
    account = examine_commands(
        COMMANDS,
        [
            *statuses((0, "accepted"), (1, "sent"), (2, "sent"), (3, "waiting"), terminal=False),
            *statuses((2, "succeeded"), (4, "timed_out")),
        ],
    )
    assert account.finished == {"succeeded": 1, "timed_out": 1}
    assert (account.waiting, account.under_way) == (3, 1), "one has no status yet"
    assert account.written == sum(account.finished.values()) + account.waiting + account.under_way


def test_a_late_answer_is_no_second_outcome_and_another_one_is() -> None:
    late = [*statuses((0, "timed_out")), *statuses((0, "succeeded"), late=True)]
    assert examine_commands(COMMANDS[:1], late).contradicting == 0
    twice = [*statuses((0, "timed_out")), *statuses((0, "succeeded"))]
    account = examine_commands(COMMANDS[:1], twice)
    assert account.contradicting == 1
    assert "CONTRADICTING: 1" in render_commands(account)


def test_commands_that_nobody_received_cannot_be_done() -> None:
    account = CommandAccount(written=2, finished={"succeeded": 2}).with_devices(received=1, copies=0, answers=1)
    assert account.lost == 1
    assert "no device received them" in render_commands(account)


def test_the_text_counts_what_the_json_counts() -> None:
    account = CommandAccount(written=3, finished={"succeeded": 2}, waiting=1, received=2, answers=2)
    text = render_commands(account)
    assert "NOT FINISHED: 1 commands." in text
    assert "2 succeeded" in text
    assert account.as_json()["consumed"] == 3


def test_a_device_that_measures_less_is_told_to_measure_as_before() -> None:
    every: dict[str, int] = {}
    for device, asked in islice(_orders([f"d{number}" for number in range(30)]), 500):
        assert every.get(device, 1) != asked, "each command changes something"
        every[device] = asked
        assert sum(one > 1 for one in every.values()) <= 10


def test_the_exit_status_says_what_is_wrong() -> None:
    assert CommandAccount(written=1, finished={"timed_out": 1}).exit_status is ExitStatus.OK
    assert CommandAccount(written=1, waiting=1).exit_status is ExitStatus.INCOMPLETE
    assert CommandAccount(written=1, finished={"succeeded": 1}).exit_status is ExitStatus.MISSING_MESSAGES
    assert CommandAccount(written=1, finished={"sent": 1}, contradicting=1).exit_status is ExitStatus.MISSING_MESSAGES
