"""The metrics of commands name what the dispatcher counts, and are there without loading it."""

from bridge.commands.model import OUTCOMES
from gateway.base import command_metrics


def test_every_outcome_has_its_series() -> None:
    assert tuple(map(str, OUTCOMES)) == command_metrics.OUTCOMES
