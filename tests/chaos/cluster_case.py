"""What failure tests on a Kafka of three nodes share: load through a gateway onto one topic, and the verdict."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tests.chaos.case import Loaded, in_order
from tests.chaos.harness import Account, settle_account
from tests.chaos.threaded import ThreadedBroker

if TYPE_CHECKING:
    from tests.brokers.kafka_cluster import ClusterAdmin, Taken
    from tests.chaos.fixtures import MakeGateway

RATE = 1000


@dataclass
class Verdict:
    """The devices' own account, and what the brokers' clocks say."""

    account: Account
    taken: Taken

    def __str__(self) -> str:
        return f"{self.account}; longest gap {self.taken.gap_s():.1f} s"


class ClusterCase(Loaded):
    """A gateway between a scripted MQTT broker, whose devices publish, and a topic with replicas on all three nodes.

    Inside the ``with`` block load flows and memory and account are watched. ``finish`` ends the load and judges.
    """

    def __init__(
        self, admin: ClusterAdmin, make_gateway: MakeGateway, topic: str, *, window: int = 32, rate: int = RATE,
        replicas: list[list[int]] | None = None, config: dict[str, str] | None = None, **tables: Any,
    ) -> None:  # fmt: skip
        self.admin = admin
        self.topic = topic
        self.window = window  # messages a session may have unacknowledged
        self._rate = rate
        self._replicas = replicas
        self._config = config or {}
        self._make_gateway = make_gateway
        self._tables = tables
        self._stack = contextlib.ExitStack()
        self.broker = ThreadedBroker(in_order(max_inflight=window))

    def __enter__(self) -> Self:
        self.admin.heal()
        self.admin.create(self.topic, self._replicas, **self._config)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.broker)
            self.gateway = self._make_gateway(
                self.broker.port,
                "",
                self.topic,
                **{**self._tables, "kafka": self._kafka(self._tables.get("kafka", {}))},
            )
            self.gateway.start()
            stack.enter_context(self.watch())
            self.broker.start_load(self._rate)
            self.lasts()
            self._stack = stack.pop_all()
        return self

    def _kafka(self, changes: dict[str, Any]) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.admin.cluster.bootstrap.split(","),
            "topics": {"create": True, "partitions": 6, "replication": 3},
            **changes,
        }

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)

    def lasts(self, seconds: float = 1.0) -> None:
        """Return when as much has been acknowledged, from now, as the load brings in so many seconds."""
        self.flows(seconds * self._rate)

    def finish(self, *, copies: int = 0, extra: dict[str, int] | None = None) -> Verdict:
        """``drain``, and judge: nothing missing, nothing foreign, order kept, no more than ``copies`` duplicates.

        ``extra`` is what was published beside the load."""
        published = self.drain() | (extra or {})
        taken = self.admin.read(self.topic)
        found = Verdict(settle_account(published, taken.partitions), taken)
        print(found)
        account = found.account
        assert account.published > 0
        assert not account.missing, str(found)
        assert not account.strangers, str(found)
        assert not account.out_of_order, str(found)
        assert account.copies <= copies, f"{found}; {copies} may be duplicates"
        return found
