"""Kafka's messages and logins as kafka-python 3.0 has them, and two messages that it lacks. Nothing else imports it.

It reads its message definitions in a way that Python 3.11 and 3.12 call deprecated; who runs a command need not know.
Its log lines are about what ``gateway.admin.link`` raises as sentences; they are kept from standard error.
"""

from __future__ import annotations

__all__ = [
    "AbstractTokenProvider",
    "ApiVersionsRequest",
    "ConsumerGroupDescribeRequest",
    "ConsumerProtocolAssignment",
    "CreatePartitionsRequest",
    "CreateTopicsRequest",
    "DeleteTopicsRequest",
    "DescribeClusterRequest",
    "DescribeConfigsRequest",
    "DescribeGroupsRequest",
    "DescribeLogDirsRequest",
    "DescribeQuorumRequest",
    "DescribeTopicPartitionsRequest",
    "ElectLeadersRequest",
    "FetchRequest",
    "FindCoordinatorRequest",
    "IncrementalAlterConfigsRequest",
    "KafkaProtocol",
    "ListGroupsRequest",
    "ListOffsetsRequest",
    "ListPartitionReassignmentsRequest",
    "MetadataRequest",
    "OffsetFetchRequest",
    "SaslAuthenticateRequest",
    "SaslHandshakeRequest",
    "get_sasl_mechanism",
    "infer_broker_version_from_api_versions",
    "kafka_errors",
]

import logging
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors as kafka_errors
    from kafka.net.sasl import get_sasl_mechanism
    from kafka.net.sasl.oauth import AbstractTokenProvider
    from kafka.protocol.admin import (
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DeleteTopicsRequest,
        DescribeClusterRequest,
        DescribeConfigsRequest,
        DescribeGroupsRequest,
        DescribeLogDirsRequest,
        DescribeQuorumRequest,
        DescribeTopicPartitionsRequest,
        ElectLeadersRequest,
        IncrementalAlterConfigsRequest,
        ListGroupsRequest,
        ListPartitionReassignmentsRequest,
    )
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions
    from kafka.protocol.consumer.fetch import FetchRequest
    from kafka.protocol.consumer.group import OffsetFetchRequest
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
    from kafka.protocol.consumer.offsets import ListOffsetsRequest
    from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
    from kafka.protocol.parser import KafkaProtocol
    from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

    from gateway.admin import messages

    class ConsumerGroupDescribeRequest(ApiMessage, load_json=messages):  # type: ignore[misc, call-arg]
        """KIP-848."""

    class ConsumerGroupDescribeResponse(ApiMessage, load_json=messages):  # type: ignore[misc, call-arg]
        """Found through its number, once it is defined."""


_LOG = logging.getLogger("kafka")
_LOG.addHandler(logging.NullHandler())  # without a handler Python prints warnings on stderr itself
_LOG.propagate = False
