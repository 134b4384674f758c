"""Settings of the ledger topic."""

from typing import Annotated

from pydantic import AfterValidator

from config.values.grammar import Duration, duration, within
from config.values.model import Table
from config.values.names import check_kafka_topic


def _check_topic(text: str) -> str:
    return check_kafka_topic(text) if text else text


class LedgerSettings(Table):
    topic: Annotated[str, AfterValidator(_check_topic)] = "gateway-ledger"
    """Kafka topic for the counts of what Kafka acknowledged, for `gateway verify`. Gateways may share it; routes and
    dead letters must not use it. Empty: no counts, no `gateway verify`."""

    interval: Annotated[Duration, within("1s", "1h")] = duration("1m")
    """Time that one set of records covers, aligned to the clock. A crash leaves the last interval out of the ledger."""
