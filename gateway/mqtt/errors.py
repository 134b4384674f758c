"""The MQTT side's branch of the error tree.

GatewayError
└── MqttError
    ├── MalformedPacketError    the peer sent what MQTT does not allow; the connection ends
    └── ConnectError            no connection now; try again later (``reason`` is the metric's label)
        └── MqttRefusedError        the broker said no: credentials, rights, a subscription it does not support
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from config.errors import ExitStatus, GatewayError

if TYPE_CHECKING:
    from gateway.mqtt.servers import Redirection


class MqttError(GatewayError):
    """Anything that ends or prevents an MQTT connection."""


class MalformedPacketError(MqttError):
    """The peer broke MQTT's rules. ``reason_code`` is what a DISCONNECT says about it (MQTT 5.0 section 4.13)."""

    def __init__(self, sentence: str, reason_code: int = 0x81) -> None:
        super().__init__(sentence)
        self.reason_code = reason_code


class ConnectError(MqttError):
    """No connection was made. ``reason`` is a label of gateway_mqtt_connect_failures_total.

    ``redirection`` is set when the broker names another server; ``code`` is CONNACK's, if there was one.
    """

    exit_status = ExitStatus.UNAVAILABLE

    def __init__(
        self, sentence: str, reason: str, redirection: Redirection | None = None, *, code: int | None = None
    ) -> None:
        super().__init__(sentence)
        self.reason = reason  # a label of the metric
        self.redirection = redirection
        self.code = code  # of CONNACK; None: there was none


class MqttRefusedError(ConnectError):
    """The broker refused the login or a subscription. By the only address, and first of all, it ends a start."""

    exit_status = ExitStatus.REFUSED
