"""Problems from counts of the last minutes, by the rules of the alerts with these names."""

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.base.metrics import Metrics
from gateway.base.problem import Problem
from gateway.base.vitals import Lasting, Rates, Stalls
from gateway.health.model import SECOND_NS, HealthSnapshot

TEN_NS: Final = 600 * SECOND_NS
QUARTER_NS: Final = 900 * SECOND_NS
TAKEN_OVER: Final = 5
TIMES: Final = 3  # for each session in ten minutes; a rolling restart of three EMQX nodes makes no more
RENEWALS: Final = 3
FAILED: Final = 0.05
FIVE_NS: Final = 300 * SECOND_NS
FAILING_NS: Final = 420 * SECOND_NS  # longer than the effect of one election; the alert waits for 600 s
INTERCEPTED: Final = 0.01
WAITING: Final = 10
OLD_S: Final = 900.0
HALF_CLOSED: Final = 20


class Counts:
    """The growth of counters within ten minutes and a quarter of an hour, noted once a minute.

    Belongs to the event loop's thread; does not block.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._ten = Rates(self._read, TEN_NS)  # growth within ten minutes; the others alike
        self._quarter = Rates(self._read, QUARTER_NS)
        self._five = Rates(self._read, FIVE_NS)
        self._failing = Lasting()  # since when too many batches have failed

    def look(self, now_ns: int) -> None:
        """Note the counters as they are now. Call it once a minute."""
        self._ten.look(now_ns)
        self._quarter.look(now_ns)
        self._five.look(now_ns)
        five = self._five.growth()
        failed = five["batches_failed"]
        self._failing.look(["batches"] if failed > FAILED * (failed + five["batches"]) else [], now_ns)

    def ten_minutes(self) -> dict[str, float]:
        """By name; empty before the first look."""
        return self._ten.growth()

    def quarter(self) -> dict[str, float]:
        """As ``ten_minutes``."""
        return self._quarter.growth()

    def failing_ns(self, now_ns: int, stalls: Stalls) -> int:
        """How long the share of failed batches, of the last five minutes, has been above 5 %."""
        return self._failing.lengths(now_ns, stalls).get("batches", 0)

    def _read(self) -> dict[str, float]:
        """The counters by name; of each interceptor ``all NAME`` and ``failed NAME``."""
        metrics = self._metrics
        ended = {reason: count for (reason,), count in metrics.mqtt_disconnects.read().items()}
        found = {
            "lost": metrics.ledger_messages.read().get(("lost",), 0),
            "taken_over": ended.get("taken_over", 0),
            "ended": sum(count for reason, count in ended.items() if reason != "requested"),
            "renewal_failures": sum(metrics.kafka_renewal_failures.read().values()),
            "batches_failed": sum(metrics.kafka_send_failures.read().values()),
            "batches": metrics.kafka_batch_records.child().count,
        }
        for (name, outcome), count in metrics.intercepts.read().items():
            found[f"all {name}"] = found.get(f"all {name}", 0) + count
            if outcome in {"error", "acknowledgement_error"}:
                found[f"failed {name}"] = found.get(f"failed {name}", 0) + count
        return found


def count_problems(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """Problems from counts, in no order."""
    ten, quarter = snapshot.ten_minutes, snapshot.quarter
    yield from _about_mqtt(ten, len(snapshot.readiness.sessions))
    yield from _about_kept(snapshot, quarter)
    if snapshot.failing_ns >= FAILING_NS:
        failed, sent = ten["batches_failed"], ten["batches"]
        text = f"{failed:.0f} of {failed + sent:.0f} batches to Kafka failed within ten minutes; they are sent again."
        check = "gateway_kafka_send_failures_total has topics and reasons."
        yield Problem("produce-errors", "warning", text, check)
    renewals = quarter.get("renewal_failures", 0)
    if renewals > RENEWALS:
        text = f"The gateway failed {renewals:.0f} times within 15 minutes to renew its login to Kafka."
        check = "Check password, user and identity provider: the log's broker_connection_not_renewed."
        yield Problem("kafka-login-renewal-failing", "warning", text, check)
    for name, count in ten.items():
        interceptor = name.removeprefix("failed ")
        if interceptor != name and count > INTERCEPTED * ten[f"all {interceptor}"]:
            text = f"Interceptor {interceptor} failed on {count:.0f} of {ten[f'all {interceptor}']:.0f} records within"
            check = "The log has the exception. on_error decides what becomes of such a record."
            yield Problem("interceptor-errors", "warning", f"{text} ten minutes.", check, interceptor)


def _about_mqtt(ten: Mapping[str, float], sessions: int) -> Iterator[Problem]:
    """Connections that ended; ``ten`` is the growth of counts within ten minutes."""
    taken, ended = ten.get("taken_over", 0), ten.get("ended", 0)
    if taken > TAKEN_OVER:
        text = (
            f"Another process uses the gateway's client ids: it took over {taken:.0f} connections within ten minutes."
        )
        check = (
            "Find it by its address in EMQX's log. Give it another instance and another data_dir, and stop it first."
        )
        yield Problem("client-id-shared", "critical", text, check)
    elif ended > TIMES * max(1, sessions):
        text = f"{ended:.0f} MQTT connections ended within ten minutes: after each, EMQX sends messages again."
        check = "gateway_mqtt_disconnects_total has the reasons; gateway doctor --only mqtt."
        yield Problem("mqtt-reconnecting", "warning", text, check)


def _about_kept(snapshot: HealthSnapshot, quarter: Mapping[str, float]) -> Iterator[Problem]:
    """What is lost or piles up; ``quarter`` is the growth of counts within 15 minutes."""
    lost = quarter.get("lost", 0)
    if lost:
        text = f"{lost:.0f} messages are lost with a damaged spool. They had been acknowledged to their devices."
        check = "Keep the files that the log names (spool_damaged): the disk's maker may read them. Replace the disk."
        yield Problem("messages-lost", "critical", text, check)
    spool = snapshot.spool
    if spool is not None and spool.messages and spool.oldest_s > OLD_S:
        text = f"The spool holds {spool.messages} messages, the oldest of {spool.oldest_s / 60:.0f} minutes ago."
        check = "This disk has the only copy. The other problems here name the cause."
        yield Problem("spool-old", "warning", text, check)
    if snapshot.intervals_waiting > WAITING:
        text = f"The ledger does not reach Kafka: {snapshot.intervals_waiting} intervals wait."
        check = "Messages flow. Check ledger.topic and the right to write to it: gateway doctor --only kafka."
        yield Problem("ledger-not-written", "warning", text, check)
    if snapshot.half_closed > HALF_CLOSED:
        text = f"{snapshot.half_closed} connections of this process stay half closed (CLOSE_WAIT)."
        check = "ss -tanp state close-wait shows the other sides."
        yield Problem("sockets-pile-up", "warning", text, check)
