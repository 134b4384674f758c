"""Settings of the ledger topic."""

__all__ = ["LedgerSettings"]

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
    """Kafka topic for the account of what Kafka acknowledged, which `gateway verify` compares with the topics
    themselves. It must be no route's topic nor the dead letters'. Several gateways may share it. Empty: no account is
    written, and `gateway verify` has nothing to go by."""

    interval: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(hours=1))] = timedelta(minutes=1)
    """Time that one set of its records covers, aligned to the clock: with 1 min they end at full minutes. After a crash
    what the last, unwritten interval acknowledged is unaccounted for. Short: one record more for each route and
    partition in use. Long: more is unaccounted for after a crash, and it is noticed later."""
