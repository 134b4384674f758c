"""The server.properties of an embedded Kafka node. Decides, writes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Listeners:
    """One node's ports on 127.0.0.1, by listener name, which is also its protocol: ``PLAINTEXT``, ``SSL``,
    ``SASL_PLAINTEXT`` or ``SASL_SSL``; and ``CONTROLLER``."""

    ports: Mapping[str, int]

    def text(self, *, advertised: bool) -> str:
        """The value of Kafka's ``listeners``, or of its ``advertised.listeners``, which have no controller."""
        return ",".join(
            f"{name}://127.0.0.1:{port}"
            for name, port in self.ports.items()
            if not (advertised and name == "CONTROLLER")
        )


def node_properties(node: int, nodes: Sequence[Listeners], data: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """The properties of node ``node`` (from 1) of a cluster whose every node is broker and controller.

    ``settings`` come last and win.
    """
    count = len(nodes)
    own = nodes[node - 1]
    replicas = str(min(3, count))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(
            f"{n}@127.0.0.1:{peer.ports['CONTROLLER']}" for n, peer in enumerate(nodes, 1)
        ),
        "controller.listener.names": "CONTROLLER",
        "listeners": own.text(advertised=False),
        "advertised.listeners": own.text(advertised=True),
        "listener.security.protocol.map": ",".join(
            f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in own.ports
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data),
        # A typing error in a topic's name is to be an error, not a topic.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": "2" if count >= 3 else "1",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": "1",
        # A laptop's groups are few: 3 partitions are made in a tenth of the time that 50 take.
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "share.coordinator.state.topic.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "0",
        # How long controllers take a silent broker for alive (9 s by default): a hanging one is replaced after it, and
        # a killed one may not register again before.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # How often an idle controller writes to the metadata's log, so that the others see how far they are. Alone it
        # writes for nobody: with the default, twice a second, an idle node took 1.8 % of a core, and 1.1 % with this.
        "metadata.max.idle.interval.ms": "10000" if count == 1 else "500",
        # The default of 128 MB comes out of a heap that is itself not much larger.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        **settings,
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """``properties`` in the format of java.util.Properties."""
    return "".join(f"{_escaped(name, key=True)}={_escaped(value)}\n" for name, value in properties.items())


def _escaped(text: str, *, key: bool = False) -> str:
    """A key or value as Java's properties files have it."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if key:
        escaped = escaped.replace("=", "\\=").replace(":", "\\:").replace(" ", "\\ ")
    if escaped[:1] in (" ", "#", "!"):
        escaped = "\\" + escaped
    return "".join(character if character.isascii() else _unicode(character) for character in escaped)


def _unicode(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
