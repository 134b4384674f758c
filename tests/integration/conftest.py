"""The real brokers of this folder's tests, other servers, and a browser."""

from tests.brokers.fixtures import *  # noqa: F403 - pytest takes fixtures from a conftest's names
from tests.brokers.kafka_backend import backend, secured_kafka  # noqa: F401
from tests.browser import browser  # noqa: F401
from tests.chaos.fixtures import make_gateway  # noqa: F401
from tests.servers.fixtures import *  # noqa: F403
