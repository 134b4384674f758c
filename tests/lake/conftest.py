"""Brokers and gateways for the tests of the lake."""

from tests.brokers.fixtures import *  # noqa: F403 (brokers for those that want one)
from tests.chaos.fixtures import *  # noqa: F403 (gateways)
