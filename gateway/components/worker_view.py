"""A worker as its watchers see it: health, /status and the lookouts. They change nothing of it."""

from typing import Protocol

from bridge.ledger import Ledger
from config.settings import Settings
from gateway.base.lifecycle import Service
from gateway.base.metrics import Metrics
from gateway.base.readiness import ReadinessSnapshot
from gateway.base.reload_state import ConfigState
from gateway.components.kafka_side import KafkaSide
from gateway.components.mqtt_side import MqttSide
from gateway.components.outward import Outward
from gateway.components.spooling import Spooling
from gateway.data_dir.identity import Identity
from gateway.data_dir.ledger_log import LedgerLog
from gateway.data_dir.lost_sessions import LostSessions


class CommandingView(Protocol):
    """The commands of a worker (``gateway.components.commanding.Commanding``) as its watchers see them."""

    def facts(self) -> dict[str, object]: ...


class WorkerView(Protocol):
    """The parts of a ``gateway.worker.worker.Worker`` that are looked at. Nothing here blocks."""

    metrics: Metrics

    @property
    def settings(self) -> Settings: ...
    @property
    def config(self) -> ConfigState | None: ...
    @property
    def service(self) -> Service: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def outward(self) -> Outward: ...
    @property
    def mqtt(self) -> MqttSide: ...
    @property
    def kafka(self) -> KafkaSide: ...
    @property
    def spooling(self) -> Spooling | None: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def ledger_log(self) -> LedgerLog: ...
    @property
    def commanding(self) -> CommandingView | None: ...
    @property
    def lost_sessions(self) -> LostSessions: ...
    def snapshot(self) -> ReadinessSnapshot: ...
