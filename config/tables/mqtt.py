"""Settings of the MQTT side."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from config.tables.tls import TlsSettings
from config.tables.tokens import TokenSettings
from config.values.addresses import HostText, HttpHeaders, MqttAddressText
from config.values.grammar import ByteCount, Count, Duration, Number, WholeSeconds, duration, within
from config.values.model import Table

_NO_NUL = r"^[^\x00]*$"  # MQTT 5.0, 1.5.4: a broker ends the connection


class ProxySettings(Table):
    host: HostText
    """Host of an HTTP proxy that allows CONNECT to the MQTT port."""

    port: Annotated[Count, Field(ge=1, le=65535)]
    """Port on which the HTTP proxy listens."""

    username: str | None = None
    """User name for the proxy (Basic authentication)."""

    password: SecretStr | None = None
    """Password for the proxy. The network to the proxy can read it."""


class StatusSettings(Table):
    enabled: bool = True
    """Whether the gateway publishes a retained birth message and registers a last will, so that everybody on the broker
    sees whether it runs."""

    topic: Annotated[str, Field(min_length=1, max_length=16_000)] = "gateways/${instance}/status"
    """MQTT topic of birth and will; its only placeholder is `${instance}`. No route takes topics below `gateways/`."""


class SessionGroupSettings(Table):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """Name of the group, unique. Routes select it by `routes[].group`; its client ids contain it."""

    sessions: Annotated[Count, Field(ge=1, le=256)] = 1
    """MQTT sessions of the group in each worker, in addition to `mqtt.sessions`."""

    receive_maximum: Annotated[Count, Field(ge=1, le=65535)] = 1000
    """Window of each session of the group, like `mqtt.receive_maximum`."""

    memory_bytes: Annotated[ByteCount, Field(ge=1 << 20, le=1 << 40)] = 4 * 1024 * 1024
    """Bytes of messages that the group may hold, reserved out of `flow.memory_bytes`, so that no other group's traffic
    can pause it. 4 MiB is seconds of alarms."""


class MqttSettings(Table):
    addresses: Annotated[tuple[MqttAddressText, ...], Field(min_length=1, max_length=64)] = ("mqtt://127.0.0.1:1883",)
    """Broker addresses: `mqtt://` (port 1883), `mqtts://` (TLS, 8883), `ws://` (WebSocket, 8083) or `wss://` (8084),
    host, optional port; IPv6 in brackets. Several are nodes of one cluster: sessions are spread over them, and a
    session whose node fails tries the next."""

    protocol: Literal["5", "3.1.1"] = "5"
    """MQTT version. Only MQTT 5 carries user properties, reason codes, session expiry and `receive_maximum`. "3.1.1" is
    for older brokers, whose own limits apply."""

    username: Annotated[str, Field(max_length=16_000, pattern=_NO_NUL)] | None = None
    """User name for the broker. Unset: anonymous."""

    password: Annotated[SecretStr, Field(max_length=16_000)] | None = None
    """Password for the broker. With `mqtt://` and `ws://` the network can read it. A `password_file` is read again for
    each connection."""

    token: TokenSettings | None = None
    """Token instead of a password, for EMQX's JWT authentication. Before it expires, sessions reconnect one at a time
    with the next token."""

    persistent: bool = True
    """Whether the broker keeps the session, its queue and unacknowledged messages while the gateway is disconnected.
    Off: they are lost."""

    client_id: Annotated[str, Field(min_length=1, max_length=1024, pattern=_NO_NUL)] = (
        "${instance}-${worker}-${session}"
    )
    """MQTT client id of a session, with the placeholders `${instance}`, `${worker}` and `${session}`. It must be stable
    and unique: a broker finds a persistent session by it, and ends the older of two."""

    session_expiry: Annotated[WholeSeconds, within("0s", "49710d6h28m14s")] = duration("1h")
    """How long the broker keeps a session without connection (MQTT 5), in whole seconds. Short: a longer absence loses
    the queue. Long: abandoned sessions hold messages of their group."""

    keepalive: Annotated[WholeSeconds, within("1s", "18h12m15s")] = duration("30s")
    """Longest silence before a ping, in whole seconds. The broker closes the connection after 1.5 times this. 30 s
    finds a dead peer within a minute. Short: brief network trouble causes a reconnect. Long: a dead session holds its
    messages."""

    receive_maximum: Annotated[Count, Field(ge=1, le=65535)] = 1000
    """The window: unacknowledged QoS 1 and 2 messages that the broker may send one session. 1000 covers a Kafka round
    trip at full rate. EMQX caps it at its own `max_inflight`, 32 by default. 1: one message per round trip. Large: as
    many messages again after a disconnect."""

    max_packet_bytes: Annotated[ByteCount, Field(ge=1024, le=268_435_460)] = 1 << 20
    """Largest MQTT packet that the gateway accepts. An MQTT 5 broker drops larger messages; a larger packet that still
    arrives closes the connection. 1 MiB is EMQX's own limit."""

    sessions: Annotated[Count, Field(ge=1, le=256)] = 4
    """MQTT sessions of a worker. EMQX limits queue and window for each. 1, in one worker, keeps every device's order
    under any dispatch strategy."""

    distribution: Literal["shared", "partitioned"] = "shared"
    """How sessions divide the messages. `shared`: one shared subscription for any number of workers; a device's order
    needs EMQX's `hash_clientid` or `hash_topic`. `partitioned`: each session has its own filters, which keeps order
    under any broker; it needs one worker and as many disjoint filters as sessions."""

    share_group: Annotated[str, Field(pattern=r"^[^/+#\x00]+$", max_length=256)] = "gateway"
    """Name of the shared subscription group, without `/`, `+` and `#` (MQTT 5.0, 4.8.2). Gateways with the same name
    share the messages; a gateway with another name receives a copy of all."""

    groups: tuple[SessionGroupSettings, ...] = ()
    """Further groups of sessions, each with its own connections, windows, memory and acknowledgements, so that an alarm
    never waits behind telemetry."""

    connect_timeout: Annotated[Duration, within("100ms", "10m")] = duration("10s")
    """Longest time for a connection, from name resolution to CONNACK, and for SUBACK; then the next address is
    tried."""

    reconnect_initial: Annotated[Duration, within("10ms", "1h")] = duration("500ms")
    """Wait before the first attempt to reconnect. While the broker is unreachable, waits double to about one second. A
    successful subscription ends those of all sessions."""

    reconnect_max: Annotated[Duration, within("10ms", "1h")] = duration("30s")
    """Longest wait after a refusal, a disconnect with a reason, a failure of TLS or token, or three connections in a
    row shorter than `stable_after`. Within 30 s of an unreachable broker a refused login is tried about every second:
    EMQX drops messages without subscribers."""

    reconnect_jitter: Annotated[Number, Field(ge=0, lt=1)] = 0.2
    """Share by which each wait varies at random, within `reconnect_max`."""

    stable_after: Annotated[Duration, within("0s", "1d")] = duration("1m")
    """How long a connection must last before waits start from `reconnect_initial` again. 0: always."""

    redirect: Literal["follow", "configured", "never"] = "follow"
    """Reaction to "use another server" or "server moved" (0x9C, 0x9D) of an MQTT 5 broker. `follow`: connect there, at
    most three times in a row, never from an encrypted to a plain address. `configured`: follow only to one of
    `addresses`. `never`: try the next address."""

    tls: TlsSettings = TlsSettings()
    """TLS to the broker, used with `mqtts://` and `wss://`. New connections use changed files. Sessions reconnect
    before a client certificate ends."""

    proxy: ProxySettings | None = None
    """HTTP proxy between gateway and broker."""

    websocket_path: Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=1024)] = "/mqtt"
    """Path of the WebSocket endpoint. EMQX, mosquitto and HiveMQ serve `/mqtt`."""

    websocket_headers: HttpHeaders = Field(default={}, repr=False)
    """Extra HTTP headers of the WebSocket handshake, name to value. Values are treated as secrets."""

    status: StatusSettings = StatusSettings()
    """Birth message and last will ([lifecycle.md](lifecycle.md#states))."""
