"""Facts from each MQTT address, then about clients and topics that the first working one admits."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bridge.routing.filters import Subscription
from bridge.tls import TlsFiles
from config.errors import GatewayError
from config.values.addresses import MqttAddress, parse_mqtt_address
from gateway.mqtt.errors import ConnectError
from gateway.mqtt.login import Login, Shown
from gateway.mqtt.probe import Visit, visit
from gateway.tools.doctor.endpoint import Endpoint, reach
from gateway.tools.doctor.threads import call

if TYPE_CHECKING:
    from config.settings import MqttSettings, Settings
    from gateway.components.outward import Outward


@dataclass(frozen=True, slots=True)
class Device:
    """Credentials of a device, to test its rights."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AddressFacts:
    """One of ``mqtt.addresses``. With a proxy (``proxied``), ``endpoint`` is the proxy's."""

    address: str
    endpoint: Endpoint
    proxied: bool = False
    login: Visit | None = None


@dataclass(frozen=True, slots=True)
class DoorFacts:
    """Whom and what the broker at ``address`` admits.

    ``filters`` is the visit with the gateway's subscriptions, which are ``asked``. ``everything`` is the visit with
    ``#``, as the client ``everything_as``; None if nobody could subscribe. ``without_certificate``: the tests for
    strangers used no client certificate, unlike the gateway. ``broker`` is name and version, empty if unknown."""

    address: str
    asked: tuple[Subscription, ...] = ()
    filters: Visit | None = None
    anonymous: Visit | None = None
    stranger: Visit | None = None
    device: Visit | None = None
    everything: Visit | None = None
    everything_as: str | None = None
    without_certificate: bool = False
    broker: str = ""


def shared_for_a_look(subscriptions: Sequence[Subscription]) -> tuple[Subscription, ...]:
    """The same filters in another share group: in the gateway's own, doctor would take messages from its sessions."""
    group = f"doctor-{secrets.token_hex(4)}"
    looked = []
    for text, qos in subscriptions:
        if text.startswith("$share/"):
            text = f"$share/{group}/{text.split('/', 2)[2]}"
        looked.append(Subscription(text, qos))
    return tuple(looked)


class Asking:
    """Asks each address with ``addresses``, then with ``door`` the first working one. Raises ConfigError for unusable
    TLS files."""

    def __init__(self, settings: Settings, outward: Outward, timeout_s: float) -> None:
        self._instance = settings.instance
        self._mqtt = settings.mqtt
        self._login = Login(settings.mqtt, outward.mqtt)
        self._timeout_s = timeout_s
        # EMQX's REST API has the version, where it is asked.
        self._version_topic = _VERSION_TOPIC if settings.emqx.url is None else None
        encrypted = any(parse_mqtt_address(text).encrypted for text in settings.mqtt.addresses)
        self._tls = TlsFiles(settings.mqtt.tls, "mqtt.tls") if encrypted else None

    async def addresses(self) -> tuple[AddressFacts, ...]:
        """The facts of all ``mqtt.addresses``, asked at the same time."""
        return tuple(await asyncio.gather(*(self._address_facts(text) for text in self._mqtt.addresses)))

    async def _address_facts(self, text: str) -> AddressFacts:
        address, proxy = parse_mqtt_address(text), self._mqtt.proxy
        if proxy is not None:
            endpoint = await reach(proxy.host, proxy.port, self._timeout_s)
        else:
            context = self._tls.context if self._tls is not None and address.encrypted else None
            endpoint = await reach(address.host, address.port, self._timeout_s, context)
        if not endpoint.reached:
            return AddressFacts(text, endpoint, proxy is not None)
        try:
            async with asyncio.timeout(self._timeout_s):
                shown = await self._login.show(encrypted=address.encrypted)
        except (GatewayError, TimeoutError) as error:
            reason = ConnectError(str(error) or "There is no token to show: its source does not answer.", "token")
            return AddressFacts(text, endpoint, proxy is not None, Visit(error=reason))
        return AddressFacts(text, endpoint, proxy is not None, await self._visit(address, shown))

    async def door(
        self, addresses: Sequence[AddressFacts], subscriptions: Sequence[Subscription], device: Device | None
    ) -> DoorFacts | None:
        """Facts from the first address that admits the gateway, else from the first that answers; None without any."""
        at = next((one for one in addresses if one.login is not None and one.login.welcome), None)
        at = at or next((one for one in addresses if one.login is not None and one.login.code is not None), None)
        if at is None:
            return None
        asked = shared_for_a_look(subscriptions)
        address = parse_mqtt_address(at.address)
        # Without the gateway's client certificate, which alone could be enough to be admitted.
        bare = self._mqtt.model_copy(update={"tls": self._mqtt.tls.model_copy(update=_NO_CERTIFICATE)})
        context = TlsFiles(bare.tls, "mqtt.tls").context() if address.encrypted else None
        everything = (Subscription("#", 0),)
        own = await self._login.show(encrypted=address.encrypted)
        anonymous = Shown(None, None, context)
        stranger = Shown(f"doctor-{secrets.token_hex(4)}", secrets.token_urlsafe(12), context)
        as_device = None if device is None else Shown(device.username, device.password, context)
        visits = await asyncio.gather(
            self._visit(address, own, asked) if asked and at.login is not None and at.login.welcome else _nothing(),
            self._visit(address, anonymous, everything),
            self._visit(address, stranger),
            _nothing() if as_device is None else self._visit(address, as_device, everything),
            self._visit(address, own, retained=self._version_topic) if self._version_topic else _nothing(),
        )
        filters, nobody, guessed, by_device, versed = visits
        withheld = address.encrypted and self._mqtt.tls.certificate_file is not None
        answered = asked, filters, nobody, guessed, by_device
        door = DoorFacts(at.address, *answered, without_certificate=withheld, broker=broker_name(versed))
        if by_device is not None and by_device.welcome:
            return replace(door, everything=by_device, everything_as="the device's user")
        if nobody is not None and nobody.welcome:
            return replace(door, everything=nobody, everything_as="a client without a name")
        return door

    async def _visit(
        self,
        address: MqttAddress,
        shown: Shown,
        filters: tuple[Subscription, ...] = (),
        retained: str | None = None,
    ) -> Visit:
        """Connect with these credentials, subscribe or read the topic ``retained``, and leave again."""
        client_id = f"{self._instance}-doctor-{secrets.token_hex(6)}"
        mqtt: MqttSettings = self._mqtt

        def work() -> Visit:
            return visit(mqtt, address, client_id, shown, filters=filters, retained=retained, timeout_s=self._timeout_s)

        try:
            # TLS, WebSocket and CONNACK may each take the whole time; the first that does ends the visit.
            return await call(work, 2 * self._timeout_s + 1)
        except TimeoutError:
            error = ConnectError(
                f"{address} did not answer our CONNECT within {2 * self._timeout_s + 1:g} s.", "timeout"
            )
            return Visit(2 * self._timeout_s + 1, error)


_VERSION_TOPIC = "$SYS/broker/version"  # mosquitto's, and that of similar brokers
_VERSION = re.compile(rb"[\w .:+-]{1,60}")
_NO_CERTIFICATE = {"certificate_file": None, "key_file": None, "key_password": None}


def broker_name(visit: Visit | None) -> str:
    """Name and version that the broker reports ("mosquitto 2.0.11"); empty for other texts."""
    said = None if visit is None else visit.retained
    if said is None or not _VERSION.fullmatch(said):
        return ""
    return said.decode().replace(" version ", " ")


async def _nothing() -> Visit | None:
    return None
