"""Settings of the MQTT side."""

__all__ = ["MqttSettings", "ProxySettings", "SessionGroupSettings", "StatusSettings"]

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from config.tls import TlsSettings
from config.tokens import TokenSettings
from config.values.addresses import MqttAddressText
from config.values.grammar import ByteCount, Count, Duration, WholeSeconds
from config.values.model import Table


class ProxySettings(Table):
    host: Annotated[str, Field(min_length=1, max_length=253)]
    """Host name or IP address of an HTTP proxy that allows CONNECT to the MQTT port. Required when the table is
    there."""

    port: Annotated[Count, Field(ge=1, le=65535)]
    """Port of the proxy. Required: proxies have no common default."""

    username: str | None = None
    """User name for the proxy (Basic). Unset: no authentication, which a proxy inside a closed network may allow."""

    password: SecretStr | None = None
    """Password for the proxy. Basic authentication is not encrypted between the gateway and the proxy."""


class StatusSettings(Table):
    enabled: bool = True
    """Whether the gateway publishes a retained birth message and leaves a last will. On, so that everybody on the
    broker can see whether it is there; off for a broker account that may not publish."""

    topic: Annotated[str, Field(min_length=1, max_length=65535)] = "gateways/${instance}/status"
    """MQTT topic of birth and will, with `${instance}` as the one placeholder. The default keeps instances apart; all
    below `gateways/` belongs to gateways and is no route's."""


class SessionGroupSettings(Table):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """Name of the group, by which routes ask for it (`routes[].group`) and which is part of its client ids. Required,
    and each once."""

    sessions: Annotated[Count, Field(ge=1, le=256)] = 1
    """MQTT sessions of the group in each worker, beside those of `mqtt.sessions`. One is enough for what is rare and
    urgent."""

    receive_maximum: Annotated[Count, Field(ge=1, le=65535)] = 1000
    """The window of each of them, as `mqtt.receive_maximum` is that of the others."""

    memory_bytes: Annotated[ByteCount, Field(ge=1 << 20, le=1 << 40)] = 4 * 1024 * 1024
    """Bytes of messages that the group holds at most, kept for it out of `flow.memory_bytes`: other groups' traffic
    cannot pause its reading, nor it theirs. 4 MiB is seconds of alarms. Small: it pauses at every hiccup."""


class MqttSettings(Table):
    addresses: Annotated[tuple[MqttAddressText, ...], Field(min_length=1, max_length=64)] = ("mqtt://127.0.0.1:1883",)
    """Broker addresses: `mqtt://` (port 1883), `mqtts://` (TLS, 8883), `ws://` (WebSocket, 8083), `wss://` (8084),
    then host and optional port; IPv6 in brackets. Several are nodes of one cluster: sessions are spread over
    them (the first of worker 0 begins with the first), and a session whose node fails tries the next. The default is a
    broker on this machine."""

    protocol: Literal["5", "3.1.1"] = "5"
    """MQTT version. 5 because it alone carries user properties, reason codes, the session expiry and our receive
    window to the broker; "3.1.1" is for brokers that know nothing newer, whose own limits then apply."""

    username: Annotated[str, Field(max_length=65535)] | None = None
    """User name shown to the broker. Unset: none, which only a broker that allows anonymous clients accepts."""

    password: SecretStr | None = None
    """Password shown to the broker. Unset: none. Over `mqtt://` and `ws://` it travels readable to everybody on the
    way. From a file (`password_file`, or the secrets directory) it is read again for each connection, so that a new one
    needs no restart."""

    token: TokenSettings | None = None
    """A token shown to the broker in the place of a password, as EMQX's JWT authentication wants it. Before it expires,
    sessions connect again with the next one, one session at a time. Unset: the password, if there is one."""

    persistent: bool = True
    """Whether the broker keeps the session while the gateway is away. On: what arrives meanwhile waits, as far as the
    broker's queue reaches, and unacknowledged messages are delivered again. Off: both are lost at every break of the
    connection."""

    client_id: Annotated[str, Field(min_length=1, max_length=1024)] = "${instance}-${worker}-${session}"
    """MQTT client id of a session; placeholders `${instance}`, `${worker}`, `${session}`. It must be stable, since a
    persistent session is found by it, and no two sessions may share one, since a broker ends the older of two. The
    default is both."""

    session_expiry: Annotated[WholeSeconds, Field(ge=timedelta(0), le=timedelta(seconds=0xFFFF_FFFE))] = timedelta(
        hours=1
    )
    """How long the broker keeps a session without connection (MQTT 5), in whole seconds. An hour outlives a restart
    and most failures. Short: a longer absence loses what waits. Long: sessions that never return hold messages of
    their group that long."""

    keepalive: Annotated[WholeSeconds, Field(ge=timedelta(seconds=1), le=timedelta(seconds=65535))] = timedelta(
        seconds=30
    )
    """Longest silence before a ping, in whole seconds. The broker gives a client up after 1.5 times this. 30 s
    notices a dead peer within a minute at no cost. Short: brief network trouble becomes a reconnect. Long: a dead
    session holds its messages."""

    receive_maximum: Annotated[Count, Field(ge=1, le=65535)] = 1000
    """The window: unacknowledged QoS 1 and 2 messages that one session lets the broker have on the way. 1000 covers a
    Kafka round trip at full rate; EMQX caps it at its own `max_inflight`, 32 unless raised. 1 is a message per round
    trip; very large values mean as many messages delivered again after a break."""

    max_packet_bytes: Annotated[ByteCount, Field(ge=1024, le=268_435_460)] = 1 << 20
    """Largest MQTT packet that the gateway takes, told to an MQTT 5 broker, which then drops larger ones; anything
    larger still closes the connection. 1 MiB is EMQX's own limit. Each session may hold one packet of this size in
    memory."""

    sessions: Annotated[Count, Field(ge=1, le=256)] = 4
    """MQTT sessions of a worker. 4, because EMQX queues 1000 messages for each and its window binds each: several
    hold more and stall less. 1 keeps the order of every device under any dispatch; many cost a connection and a
    client id each."""

    distribution: Literal["shared", "partitioned"] = "shared"
    """How messages are spread over sessions. `shared`: one shared subscription, and any number of workers; a device's
    order holds only under EMQX's `hash_clientid` or `hash_topic`. `partitioned`: each session takes filters of its
    own, which keeps order under any broker, but needs at least as many disjoint filters as sessions."""

    share_group: Annotated[str, Field(pattern=r"^[^/+#\x00]+$", max_length=256)] = "gateway"
    """Name of the shared subscription group; gateways with the same name share the messages, another name gets a copy
    of all. No `/`, `+` or `#` (MQTT 5.0, 4.8.2)."""

    groups: tuple[SessionGroupSettings, ...] = ()
    """Further groups of sessions, a table each, for routes that name one: with connections, windows, memory and
    acknowledgements of their own, so that an alarm never waits behind telemetry. None: all routes share `sessions`."""

    connect_timeout: Annotated[Duration, Field(ge=timedelta(milliseconds=100), le=timedelta(minutes=10))] = timedelta(
        seconds=10
    )
    """Longest time for a connection, from name resolution through TLS to CONNACK, before the next address is tried;
    and how long the broker may be silent until SUBACK. 10 s suits slow links; short values give up on a busy broker,
    long ones delay the fail-over."""

    reconnect_initial: Annotated[Duration, Field(ge=timedelta(milliseconds=10), le=timedelta(hours=1))] = timedelta(
        seconds=0.5
    )
    """Wait before the first attempt to reconnect. While the broker is away, waits double up to about a second; one
    session that is subscribed ends the waits of the worker's others. Very short: a refusing broker is hammered."""

    reconnect_max: Annotated[Duration, Field(ge=timedelta(milliseconds=10), le=timedelta(hours=1))] = timedelta(
        seconds=30
    )
    """Longest wait between attempts when the broker refuses this session: another client took it over, a ban, a quota,
    a refused login. Waits double up to it. A broker that is away, or restarted within the last 30 s, is tried about
    every second instead: EMQX drops what is published until somebody has subscribed again."""

    reconnect_jitter: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share by which each wait varies at random, up and down, within `reconnect_max`. 0.2 keeps many gateways from
    returning at the same instant; 0 lets them; near 1 some waits nearly vanish."""

    stable_after: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(hours=24))] = timedelta(minutes=1)
    """How long a connection must hold before waits that have grown start from `reconnect_initial` again. A minute, so
    that a broker which accepts and drops at once is not tried without pause; 0 resets with every connection."""

    redirect: Literal["follow", "configured", "never"] = "follow"
    """What to do when an MQTT 5 broker says "use another server" or "server moved" (0x9C, 0x9D) and names one.
    `follow`: go there, three times in a row at most, never from an encrypted connection to a plain one, nor to an
    address where no broker can be. The default, because a broker that empties a node for maintenance disconnects who
    stays, and one that we log in to has our password already. `configured`: only to one of `addresses`. `never`: the
    next address has its turn."""

    tls: TlsSettings = TlsSettings()
    """TLS to the broker; used with `mqtts://` and `wss://` addresses alone. When its files change, connections made
    from then on use the new ones; sessions connect again before a client certificate that has a successor ends."""

    proxy: ProxySettings | None = None
    """HTTP proxy on the way to the broker. Unset: a direct connection."""

    websocket_path: Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=1024)] = "/mqtt"
    """Path of the WebSocket endpoint, with `ws://` and `wss://`. `/mqtt` is what EMQX, mosquitto and HiveMQ serve."""

    websocket_headers: dict[str, str] = Field(default={}, repr=False)
    """Extra HTTP headers of the WebSocket handshake, name to value. Values are treated as secrets: a token may stand
    there."""

    status: StatusSettings = StatusSettings()
    """Birth message and last will."""
