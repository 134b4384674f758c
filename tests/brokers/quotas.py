"""Client quotas of a real Kafka (KIP-546), which none of the admin clients at hand can set."""

import contextlib
import warnings

from config.settings import Settings
from gateway.admin.link import Link
from gateway.admin.login import AdminLogin
from tests.waiting import DEADLINE_S, wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest


def limit_producer(bootstrap: str, client_id: str, bytes_per_s: float) -> None:
    """Let a client id write so many bytes a second at the first broker named. Blocks until the broker knows.

    The answer is the controller's; the broker shows a quota some milliseconds later, and applies it another moment
    later. What it shows of the second one is newer than all that it did for the first.
    """
    broker = bootstrap.split(",", maxsplit=1)[0]
    host, _, port = broker.rpartition(":")
    settings = Settings.model_validate({"kafka": {"bootstrap_servers": [broker]}})
    with contextlib.closing(Link(host, int(port), "the broker", AdminLogin(settings), "test-quotas")) as link:
        for name in (client_id, f"{client_id}-behind"):
            entry = AlterClientQuotasRequest.EntryData
            quota = entry(
                entity=[entry.EntityData(entity_type="client-id", entity_name=name)],
                ops=[entry.OpData(key="producer_byte_rate", value=bytes_per_s, remove=False)],
            )
            (result,) = link.ask(AlterClientQuotasRequest(entries=[quota], validate_only=False), DEADLINE_S).entries
            assert result.error_code == 0, result.error_message
            component = DescribeClientQuotasRequest.ComponentData
            known = DescribeClientQuotasRequest(
                components=[component(entity_type="client-id", match_type=0, match=name)], strict=True
            )
            wait_until(lambda known=known: link.ask(known, DEADLINE_S).entries, f"the broker knows {name}'s quota")
