"""Client quotas of a real Kafka (KIP-546), which none of the admin clients at hand can set."""

import warnings

from config.settings import Settings
from gateway.admin.link import Link
from gateway.admin.login import AdminLogin

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest

_SECONDS = 60.0


def limit_producer(bootstrap: str, client_id: str, bytes_per_s: float | None) -> None:
    """Let a client id write so many bytes a second at each broker; None: as many as it likes. Blocks."""
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
    entry = AlterClientQuotasRequest.EntryData
    quota = entry(
        entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[entry.OpData(key="producer_byte_rate", value=bytes_per_s or 0.0, remove=bytes_per_s is None)],
    )
    settings = Settings.model_validate({"kafka": {"bootstrap_servers": [bootstrap.split(",", maxsplit=1)[0]]}})
    link = Link(host, int(port), "the broker", AdminLogin(settings), "test-quotas")
    try:
        answer = link.ask(AlterClientQuotasRequest(entries=[quota], validate_only=False), _SECONDS)
    finally:
        link.close()
    (result,) = answer.entries
    assert result.error_code == 0, result.error_message
