"""Kafka's messages and logins of kafka-python 3.0, and two messages that it lacks. No other module imports the library.

The library reads its message definitions in a way that is deprecated in Python 3.11 and 3.12; the warning is silenced.
Its log lines repeat errors that ``gateway.admin.link`` raises as sentences, so they do not go to standard error.
"""

__all__ = [
    "AbstractTokenProvider", "ConsumerGroupDescribeRequest", "KafkaProtocol", "admin_api", "consumer_api",
    "get_sasl_mechanism", "infer_broker_version_from_api_versions", "kafka_errors", "metadata_api", "sasl_api",
]  # fmt: skip

import logging
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors as kafka_errors
    from kafka.net.sasl import get_sasl_mechanism
    from kafka.net.sasl.oauth import AbstractTokenProvider
    from kafka.protocol import admin as admin_api
    from kafka.protocol import consumer as consumer_api
    from kafka.protocol import metadata as metadata_api
    from kafka.protocol import sasl as sasl_api
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions
    from kafka.protocol.parser import KafkaProtocol

    from gateway.admin import messages

    class ConsumerGroupDescribeRequest(ApiMessage, load_json=messages):  # type: ignore[misc, call-arg]
        """KIP-848."""

    class ConsumerGroupDescribeResponse(ApiMessage, load_json=messages):  # type: ignore[misc, call-arg]
        """kafka-python finds this class by its number."""


_LOG = logging.getLogger("kafka")
_LOG.addHandler(logging.NullHandler())  # without a handler Python prints warnings on stderr itself
_LOG.propagate = False
