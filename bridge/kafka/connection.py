"""Makes aiokafka's clients, and finds why they could not reach Kafka.

aiokafka only logs the reason of a failed bootstrap. So ``why_unreachable`` asks each address again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import aiokafka.errors as kafka_errors
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.metadata import MetadataRequest

from bridge.errors import BridgeError, RefusedError, UnreachableError
from bridge.kafka import fetched
from bridge.kafka.client import Client
from bridge.kafka.login import KafkaLogin
from bridge.kafka.session import open_connection
from bridge.tls import distrust
from bridge.waiting import end_tasks
from config.error_words import words
from config.errors import GatewayError

if TYPE_CHECKING:
    from aiokafka.client import AIOKafkaClient

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
    """Options of every aiokafka client, without security (see ``KafkaLogin.options``)."""
    return {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "client_id": client_id,
        "request_timeout_ms": int(settings.request_timeout.total_seconds() * 1000),
        "metadata_max_age_ms": int(settings.metadata_max_age.total_seconds() * 1000),
        "retry_backoff_ms": int(settings.retry_backoff.total_seconds() * 1000),
    }


class _Consumer(AIOKafkaConsumer):  # type: ignore[misc]
    """aiokafka's own waits for ever for records when a defect has ended its fetcher."""

    async def getmany(self, *partitions: TopicPartition, **how: Any) -> Any:
        """As its own; raises the defect."""
        found = await super().getmany(*partitions, **how)
        fetching = self._fetcher.error_future
        if not found and fetching.done() and (failed := fetching.exception()):
            raise failed.__cause__ or failed
        return found


def make_consumer(options: dict[str, Any], login: KafkaLogin, **more: Any) -> AIOKafkaConsumer:
    """A consumer without a group, not started, whose connections are renewed as the producer's are."""
    fetched.use()
    consumer = _Consumer(**options, **login.options(), group_id=None, enable_auto_commit=False, **more)
    consumer._client = Client(login, **options)
    return consumer


def make_admin(options: dict[str, Any], login: KafkaLogin) -> AIOKafkaAdminClient:
    """An admin client, not started, whose connections are renewed as the producer's are."""
    admin = AIOKafkaAdminClient(**options, **login.options())
    admin._client = Client(login, **options)
    return admin


async def cluster_id_of(client: AIOKafkaClient, node: int) -> str | None:
    """The id of the cluster by one broker; None when the broker has none (KIP-78, older or other software).

    aiokafka's own metadata leave it out. Raises aiokafka's KafkaError."""
    response = await client.send(node, MetadataRequest([]))
    return getattr(response, "cluster_id", None) or None


async def cluster_id(settings: KafkaSettings, client_id: str, login: KafkaLogin | None = None) -> str | None:
    """The id of the cluster of these settings. Raises UnreachableError or RefusedError."""
    async with asking(settings, client_id, login, "Kafka did not give its cluster id") as client:
        node = client.get_random_node()
        if node is None:
            raise UnreachableError("Kafka answered, but lists no broker yet.")
        return await cluster_id_of(client, node)


@contextlib.asynccontextmanager
async def asking(
    settings: KafkaSettings, client_id: str, login: KafkaLogin | None, failed: str
) -> AsyncIterator[Client]:
    """A connected client for a few questions. Its errors become UnreachableError (``failed`` begins the sentence) or
    RefusedError."""
    options, login = connection_options(settings, client_id), login or KafkaLogin(settings)
    client = Client(login, **options)
    try:
        await client.bootstrap()
        yield client
    except kafka_errors.KafkaConnectionError as error:
        raise await why_unreachable(options, login) from error
    except kafka_errors.KafkaError as error:
        raise UnreachableError(f"{failed}: {words(error)}.") from error
    finally:
        await client.close()


async def why_unreachable(options: dict[str, Any], login: KafkaLogin) -> BridgeError:
    """Ask each bootstrap address again, and return the reasons in a sentence."""
    reasons = []
    timeout_ms, client_id = options["request_timeout_ms"], options["client_id"]
    for address in options["bootstrap_servers"]:
        host, _, port = address.rpartition(":")
        shown, conn = login.options(), None
        try:
            conn = await open_connection(
                host.strip("[]"), int(port), client_id=client_id, request_timeout_ms=timeout_ms, **shown
            )
            await conn.send(MetadataRequest([]))  # a SASL listener accepts the connection and then closes it
        except kafka_errors.UnsupportedSaslMechanismError:
            return RefusedError(
                f"Kafka at {address} does not offer {shown['sasl_mechanism']}. "
                "Set kafka.sasl.mechanism to one of its listener's sasl.enabled.mechanisms."
            )
        except REFUSED as error:
            mechanism = shown.get("sasl_mechanism")
            return RefusedError(
                f"Kafka at {address} refused {login.who} with {mechanism}: {words(error)}. {login.check}."
            )
        except (OSError, TimeoutError, kafka_errors.KafkaError) as error:
            if isinstance(error.__cause__, GatewayError):
                return UnreachableError(f"Kafka cannot be asked: {error.__cause__}")
            reasons.append(f"{address}: {_guess(error, shown['security_protocol'])}")
        else:
            reasons.append(f"{address}: answers now.")
        finally:
            if conn is not None:
                conn.close()
    return UnreachableError(f"Kafka cannot be reached. {' '.join(reasons)}")


def _guess(error: BaseException, secured: str) -> str:
    """Why a connection failed, and what to check. ``secured``: the security protocol of the settings."""
    text = words(error)
    if isinstance(error, ConnectionRefusedError):
        return f"connection refused. Is the broker running, and is this the port of its {secured} listener?"
    if isinstance(error, ssl.SSLCertVerificationError):
        return distrust(error, "kafka.tls")
    if isinstance(error, socket.gaierror):
        return f"{text}. Check kafka.bootstrap_servers, and this machine's DNS."
    if isinstance(error, TimeoutError | kafka_errors.RequestTimedOutError):
        return f"no answer within kafka.request_timeout. Is there a firewall, or a TLS listener instead of {secured}?"
    if isinstance(error, kafka_errors.KafkaConnectionError | ConnectionError):
        return (
            f"{text}. The broker closed the connection: does this port have another security protocol than {secured} "
            "(kafka.security)?"
        )
    return text


def read_failure(error: BaseException, what: str) -> BridgeError:
    """The error of a reader for a question about ``what`` that Kafka refused or did not answer."""
    if isinstance(error, REFUSED):
        return RefusedError(
            f"Kafka does not let us read {what}: {words(error)}. Check kafka.sasl and the ACLs: Describe and Read on "
            "it."
        )
    return UnreachableError(f"Kafka did not answer about {what}: {words(error)}.")


async def stop_consumer(consumer: Any) -> None:
    """End an aiokafka consumer within two seconds.

    Its own ``stop`` can hang while the fetcher drops an earlier assignment, because the fetcher mistakes the
    cancellation for one of its requests. A second cancellation ends it. And it leaves its connections open when a
    defect has ended the fetcher.
    """
    stopping = asyncio.ensure_future(consumer.stop())
    await asyncio.wait([stopping], timeout=1.0)
    if not stopping.done() or stopping.exception() is not None:
        await end_tasks(stopping, patience_s=0.5)  # also cancels the fetcher, for which it waits
        await asyncio.wait([asyncio.ensure_future(consumer._client.close())], timeout=0.5)
