"""Brokers and gateways of the failure tests."""

from tests.brokers.fixtures import *  # noqa: F403 - pytest takes fixtures from a conftest's names
from tests.chaos.fixtures import *  # noqa: F403
