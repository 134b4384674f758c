"""The whole way of a token: the identity provider makes it, the gateway shows it, a real MQTT broker asks the access
service, which verifies it with the provider's keys."""

import json
import time
from pathlib import Path
from typing import Any

from auth.model import Rule
from gateway.local.embedded.access import AccessEndpoint
from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from tests.auth_process import auth_serve
from tests.brokers.client import Client
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import payload, read_topic, settle_account
from tests.servers.identity_provider import IdentityProvider
from tests.waiting import wait_until

SHARED = "0123456789abcdef0123456789abcdef"
DEVICE = ("device", "a device's password")
LIFETIME_S = 12


def _auth(provider: IdentityProvider) -> str:
    key = {
        "name": "issuer", "jwks_url": provider.jwks_url, "algorithms": ["ES256"], "issuer": provider.url,
        "audience": "emqx", "superuser": True,
    }  # fmt: skip
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in key.items())
    return f'shared_secret = "{SHARED}"\nchain = ["jwt", "database"]\n[[auth.jwt.keys]]\n{lines}'


def test_a_token_goes_all_the_way_and_is_renewed(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str, tmp_path: Path
) -> None:
    with IdentityProvider() as provider:
        provider.lifetime_s = LIFETIME_S
        provider.claims = {"is_superuser": True}
        folder = tmp_path / "service"
        folder.mkdir()
        with auth_serve(folder, auth=_auth(provider)) as service:
            port = service.port()
            service.wait_for("jwks_fetched")  # a login waits a second for it
            service.add_user(*DEVICE)
            with service.edit() as editor:
                editor.rules.append(Rule("allow", "devices/#", who=(("username", "device"),)))
            with MqttBroker(access=AccessEndpoint(port, SHARED)) as broker:
                oauth: dict[str, Any] = {
                    "token_url": provider.token_url, "client_id": "gateway", "audience": "emqx",
                    "client_secret": provider.clients["gateway"],
                }  # fmt: skip
                mqtt = {"username": "gateway", "sessions": 2, "token": {"oauth": oauth, "renew_at": 0.2}}
                gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt=mqtt)
                gateway.start()

                def renewals(labels: str) -> float:
                    return gateway.samples("gateway_mqtt_renewals_total")[labels]

                count, end = 0, time.monotonic() + 1.25 * LIFETIME_S
                with Client(broker.port, user=DEVICE) as device:

                    def is_renewed() -> bool:
                        nonlocal count
                        device.publish("devices/d1", payload("d1", count))
                        count += 1
                        return time.monotonic() > end and renewals('{reason="token",result="renewed"}') >= 4

                    wait_until(is_renewed, "each of two sessions is renewed twice", poll_s=0.01)
                wait_until(
                    lambda: gateway.status()["ledger"]["received"] >= count and gateway.settled(), "all has come"
                )
                postponed = renewals('{reason="token",result="postponed"}')
                failures = gateway.metric("gateway_mqtt_connect_failures_total")
                assert gateway.stop() is not None
            denied = [line for line in service.get("/metrics").body.splitlines() if 'authn",result="deny"}' in line]
    assert postponed == 0
    assert failures == 0
    assert all(line.endswith(" 0.0") for line in denied), denied
    assert len(provider.issued) >= 3
    account = settle_account({"d1": count}, read_topic(kafka.bootstrap, unique))
    assert (account.missing, account.copies, account.strangers) == ([], 0, []), str(account)
