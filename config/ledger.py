"""Settings of the ledger topic."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from config.values.grammar import Duration
from config.values.model import Table
from config.values.names import check_kafka_topic


def _check_topic(text: str) -> str:
    return check_kafka_topic(text) if text else text


class LedgerSettings(Table):
    topic: Annotated[str, AfterValidator(_check_topic)] = "gateway-ledger"
    """Kafka topic for the counts of what Kafka acknowledged, for `gateway verify`. Gateways may share it; routes and
    dead letters must not use it. Empty: no counts, no `gateway verify`."""

    interval: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(hours=1))] = timedelta(minutes=1)
    """Time that one set of records covers, aligned to the clock. A crash leaves the last interval out of the ledger."""
