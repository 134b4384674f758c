"""What failure tests at the scripted broker share: load through a gateway onto one Kafka topic, and the verdict."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.brokers.proxy import FaultyProxy
from tests.brokers.scripted_rules import Rules
from tests.chaos.harness import FULL, Account, Gateway, Watch, account
from tests.chaos.threaded import ThreadedBroker
from tests.waiting import wait_until

ROUNDS = 6 if FULL else 2
QUEUE = 1000 if FULL else 1_000_000  # EMQX's; a machine with other tests stands still for longer than that lasts
QUICK = {"reconnect_initial": "50ms", "reconnect_max": "500ms", "stable_after": "0s"}
LIMIT_MIB = 32  # flow.memory_bytes


def in_order(queue: int = 1_000_000, **more: Any) -> Rules:
    """EMQX with hash_clientid; the queue is large unless its size is the point."""
    return Rules(strategy="hash_clientid", queue=queue, **more)


def sent(gateway: Gateway) -> float:
    """Records that are in Kafka."""
    return gateway.metric("gateway_kafka_records_sent_total")


def flowing(gateway: Gateway, records: float) -> None:
    """Wait until that many records more are in Kafka."""
    before = sent(gateway)
    wait_until(lambda: sent(gateway) >= before + records, f"{records} records; {gateway.tail()}")


def data_of(gateway: Gateway) -> Path:
    return gateway.log_file.parent / "data"


def judge(
    gateway: Gateway, bootstrap: str, topic: str, published: dict[str, int], *, copies: float = math.inf,
    ordered: bool = False,
) -> Account:  # fmt: skip
    """Nothing in flight, ledger 0, missing 0, foreign 0; and on demand in order, with ``copies`` duplicates at most."""
    wait_until(gateway.settled, f"nothing is in flight; {gateway.status()['ledger']}", 120)
    assert gateway.imbalance() == 0
    found = account(bootstrap, topic, published)
    print(found)
    assert not found.missing, str(found)
    assert not found.strangers, str(found)
    assert not (ordered and found.out_of_order), str(found)
    assert found.copies <= copies, f"{found}; {copies} may be duplicates"
    return found


@dataclass
class Loaded:
    """A scripted broker whose devices publish, and a gateway that writes to a topic what they do."""

    broker: ThreadedBroker
    gateway: Gateway
    topic: str

    def sent(self) -> float:
        """Records that are in Kafka."""
        return sent(self.gateway)

    def flows(self, records: float) -> None:
        """Wait until that many records more are in Kafka."""
        flowing(self.gateway, records)

    def watch(self, memory_mib: float = LIMIT_MIB) -> Watch:
        """Memory stays within what the gateway has now, its limit, and what the account of failures may cost."""
        return Watch(self.gateway, rss_mib=self.gateway.rss_mib() + memory_mib + 30)

    def drain(self, published: dict[str, int] | None = None) -> dict[str, int]:
        """End the load, unless it has ended, and wait until everything is acknowledged; the broker lost nothing. How
        many messages each device published, numbered from 0."""
        published = self.broker.stop_load() if published is None else published
        wait_until(self.broker.drained, f"everything is acknowledged; {self.gateway.tail()}", 120)
        wait_until(self.gateway.settled, f"nothing is in flight; {self.gateway.status()['ledger']}", 120)
        assert self.gateway.imbalance() == 0
        assert not self.broker.call(lambda: self.broker.broker.violations)
        assert self.broker.dropped() == 0
        assert self.broker.unrouted() == 0, "somebody was always subscribed"
        return published


@dataclass
class Case(Loaded):
    """Its topic is in a Kafka of one node. ``unacknowledged`` counts messages that may come again after failures."""

    bootstrap: str
    link: FaultyProxy | None = None
    unacknowledged: int = field(default=0, init=False)

    @property
    def proxy(self) -> FaultyProxy:
        """What is between gateway and broker."""
        assert self.link is not None
        return self.link

    @property
    def links(self) -> int:
        """How many connections the broker has."""
        return self.broker.call(lambda: len(self.broker.broker.links))

    @property
    def client_ids(self) -> set[str]:
        """Of the sessions that the broker has."""
        return self.broker.call(lambda: set(self.broker.broker.sessions))

    def all_back(self, sessions: int = 4) -> None:
        """Wait until all sessions are connected."""
        gateway = self.gateway
        wait_until(lambda: gateway.metric("gateway_mqtt_connected") == sessions, f"all are back; {gateway.tail()}")

    def end_links(self, reason: int | None = None, properties: bytes = b"") -> None:
        """End all connections, by a reset or a DISCONNECT with this reason."""

        def end() -> int:
            flying = sum(len(session.flying) for session in self.broker.broker.sessions.values())
            for link in list(self.broker.broker.links):
                if reason is None:
                    link.transport.abort()
                else:
                    link.end(reason, properties)
            return flying

        self.unacknowledged += self.broker.call(end)

    def kill(self) -> None:
        """Kill the gateway; returns when the broker has noticed it."""
        self.gateway.kill()
        wait_until(lambda: not self.links, "the broker notices")
        self.unacknowledged += self.broker.unacknowledged()

    def finish(
        self, published: dict[str, int] | None = None, *, copies: float | None = None, ordered: bool = True
    ) -> Account:
        """``drain``, and ``judge``; ``copies`` is ``unacknowledged`` where nothing else is said."""
        published = self.drain(published)
        copies = self.unacknowledged if copies is None else copies
        return judge(self.gateway, self.bootstrap, self.topic, published, copies=copies, ordered=ordered)
