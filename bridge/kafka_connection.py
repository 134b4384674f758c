"""How aiokafka's clients of ours reach Kafka, and why they could not.

Why a bootstrap failed goes to aiokafka's log only, so ``why_unreachable`` asks each address again to say it.
"""

from __future__ import annotations

__all__ = ["REFUSED", "cluster_id", "cluster_id_of", "connection_options", "stop_consumer", "why_unreachable"]

import asyncio
from typing import TYPE_CHECKING, Any

import aiokafka.errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest

from bridge.errors import BridgeError, RefusedError, UnreachableError
from bridge.tls import tls_context

if TYPE_CHECKING:
    from config.settings import KafkaSettings

REFUSED = (
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.ClusterAuthorizationFailedError,
    kafka_errors.TransactionalIdAuthorizationFailed,
    kafka_errors.SaslAuthenticationFailed,
    kafka_errors.AuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)


def connection_options(settings: KafkaSettings, client_id: str) -> dict[str, Any]:
    """What every aiokafka client of ours is made with: addresses, security, time-outs."""
    options: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "client_id": client_id,
        "request_timeout_ms": int(settings.request_timeout.total_seconds() * 1000),
        "metadata_max_age_ms": int(settings.metadata_max_age.total_seconds() * 1000),
        "retry_backoff_ms": int(settings.retry_backoff.total_seconds() * 1000),
        "security_protocol": settings.security,
    }
    if settings.security.endswith("SSL"):
        options["ssl_context"] = tls_context(settings.tls, "kafka.tls")
    if settings.sasl is not None:
        options["sasl_mechanism"] = settings.sasl.mechanism
        options["sasl_plain_username"] = settings.sasl.username
        options["sasl_plain_password"] = settings.sasl.password.get_secret_value()
    return options


async def cluster_id_of(client: AIOKafkaClient, node: int) -> str | None:
    """What the cluster calls itself, asked of one broker; None when it does not say (KIP-78, older or other software).

    aiokafka's own metadata leave it out. Raises aiokafka's KafkaError."""
    response = await client.send(node, MetadataRequest([]))
    return getattr(response, "cluster_id", None) or None


async def cluster_id(settings: KafkaSettings, client_id: str) -> str | None:
    """Ask the Kafka of these settings what it calls itself. Raises UnreachableError or RefusedError."""
    options = connection_options(settings, client_id)
    client = AIOKafkaClient(**options)
    try:
        await client.bootstrap()
        node = client.get_random_node()
        if node is None:
            raise UnreachableError("Kafka answered, but lists no broker yet.")
        return await cluster_id_of(client, node)
    except kafka_errors.KafkaConnectionError as error:
        raise await why_unreachable(options) from error
    except kafka_errors.KafkaError as error:
        raise UnreachableError(f"Kafka did not say which cluster it is: {error}.") from error
    finally:
        await client.close()


async def why_unreachable(options: dict[str, Any]) -> BridgeError:
    """Ask each bootstrap address why it cannot be used, and say it in a sentence."""
    reasons = []
    connection = {
        k: v for k, v in options.items() if k not in {"bootstrap_servers", "metadata_max_age_ms", "retry_backoff_ms"}
    }
    for address in options["bootstrap_servers"]:
        host, _, port = address.rpartition(":")
        conn = None
        try:
            conn = await create_conn(host.strip("[]"), int(port), **connection)
            await conn.send(MetadataRequest([]))  # a SASL listener takes the connection, and then hangs up
        except kafka_errors.UnsupportedSaslMechanismError:
            return RefusedError(
                f"Kafka at {address} does not offer {options['sasl_mechanism']}. "
                "Set kafka.sasl.mechanism to one of its listener's sasl.enabled.mechanisms."
            )
        except REFUSED as error:
            user = options.get("sasl_plain_username")
            mechanism = options.get("sasl_mechanism")
            return RefusedError(
                f"Kafka at {address} refused user {user!r} with {mechanism}: {error}. "
                "Check kafka.sasl.username, password and mechanism."
            )
        except (OSError, TimeoutError, kafka_errors.KafkaError) as error:
            reasons.append(f"{address}: {_guess(error, options)}")
        else:
            reasons.append(f"{address}: answers now.")
        finally:
            if conn is not None:
                conn.close()
    return UnreachableError(f"Kafka cannot be reached. {' '.join(reasons)}")


def _guess(error: BaseException, options: dict[str, Any]) -> str:
    text = str(error) or type(error).__name__
    secured = options["security_protocol"]
    if isinstance(error, ConnectionRefusedError):
        return f"connection refused. Is the broker running, and is this the port of its {secured} listener?"
    if "CERTIFICATE" in text.upper():
        return f"{text}. Check kafka.tls.ca_file and kafka.tls.server_name."
    if isinstance(error, TimeoutError | kafka_errors.RequestTimedOutError):
        return f"no answer within kafka.request_timeout. A firewall, or a TLS listener spoken to in {secured}?"
    if isinstance(error, kafka_errors.KafkaConnectionError | ConnectionError):
        return f"{text}. The broker hung up: is this port another security protocol than {secured} (kafka.security)?"
    return text


async def stop_consumer(consumer: Any) -> None:
    """End an aiokafka consumer, in two seconds at most.

    Its own ``stop`` waits for ever when the fetcher is just letting go of an earlier assignment: it takes the
    cancellation for that of the requests it is cancelling itself. Asked a second time it ends.
    """
    stopping = asyncio.ensure_future(consumer.stop())
    await asyncio.wait([stopping], timeout=1.0)
    if not stopping.done():
        stopping.cancel()  # reaches the fetcher, for which it waits
        await asyncio.wait([stopping], timeout=0.5)
        await asyncio.wait([asyncio.ensure_future(consumer._client.close())], timeout=0.5)
