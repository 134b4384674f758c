"""What those see of a worker who only look at it: health, /status, and what looks outside for it. They change nothing
of it; what changes a worker are its own methods."""

from __future__ import annotations

__all__ = ["WorkerView"]

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bridge.kafka.contacts import Contacts
    from bridge.kafka.login import KafkaLogin
    from bridge.kafka.producer import KafkaProducer
    from bridge.ledger import Ledger
    from bridge.produce.partitions import Partitions
    from bridge.produce.sender import Sender
    from bridge.routing.router import Router
    from config.settings import Settings
    from gateway.base.lifecycle import Service
    from gateway.base.metrics import Metrics
    from gateway.base.readiness import ReadinessSnapshot
    from gateway.base.reload_state import ConfigState
    from gateway.components.outward import Outward
    from gateway.components.session_group import SessionGroup
    from gateway.components.spooling import Spooling
    from gateway.data_dir.identity import Identity
    from gateway.data_dir.ledger_log import LedgerLog
    from gateway.data_dir.lost_sessions import LostSessions
    from gateway.mqtt.login import Login
    from gateway.mqtt.orphans import Orphans
    from gateway.mqtt.session import Session


class WorkerView(Protocol):
    """A ``gateway.worker.worker.Worker``, without what changes it. None of the methods blocks."""

    metrics: Metrics
    kafka_login: KafkaLogin
    mqtt_login: Login

    @property
    def settings(self) -> Settings: ...
    @property
    def router(self) -> Router: ...
    @property
    def config(self) -> ConfigState | None: ...
    @property
    def service(self) -> Service: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def outward(self) -> Outward: ...

    @property
    def groups(self) -> Sequence[SessionGroup]: ...
    @property
    def sessions(self) -> Sequence[Session]: ...
    @property
    def orphans(self) -> Orphans: ...
    @property
    def lost_sessions(self) -> LostSessions: ...
    def all_sessions(self) -> Iterator[Session]: ...
    def received_rows(self) -> dict[tuple[str, ...], float]: ...

    @property
    def ledger(self) -> Ledger: ...
    @property
    def ledger_log(self) -> LedgerLog: ...
    @property
    def partitions(self) -> Partitions: ...
    @property
    def spooling(self) -> Spooling | None: ...

    @property
    def sender(self) -> Sender: ...
    @property
    def contacts(self) -> Contacts: ...
    @property
    def kafka_problem(self) -> str | None: ...
    def kafka_producer(self) -> KafkaProducer: ...
    def refused_topics(self) -> tuple[str, ...]: ...
    def snapshot(self) -> ReadinessSnapshot: ...
