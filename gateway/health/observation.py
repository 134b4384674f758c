"""Facts about a worker that only time shows, observed once a second: durations, rates, counts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from bridge.interceptors import InterceptorError
from config.errors import GatewayError
from gateway.base.moments import moment
from gateway.base.process.machine_facts import sockets
from gateway.base.vitals import Lasting, Rates, Vitals, Window
from gateway.health.counts import Counts
from gateway.health.model import MUTE_NS
from gateway.health.pace import Pace

if TYPE_CHECKING:
    from bridge.produce.partitions import PartitionQueue
    from bridge.wire import DeadLetterReason
    from config.settings import Settings
    from gateway.base.metrics import Metrics
    from gateway.base.problem import Problem
    from gateway.components.worker_view import WorkerView

SECOND_NS: Final = 1_000_000_000
MOST_PARTITIONS: Final = 2000  # in /status and in the metrics; the worst come first
MINUTE_NS: Final = 60 * SECOND_NS
QUARTER_NS: Final = 900 * SECOND_NS
SUSPECT_NS: Final = 2 * SECOND_NS  # after this wait of records their broker is probed
LED_NS: Final = SECOND_NS
AFTERWARDS_NS: Final = 15 * SECOND_NS  # time to acknowledge records that waited for a removed replica
SATURATED: Final = 0.9
TEXT: Final = 300
LAST: Final = 10


class Observation:
    """Observes a worker once a second (``vitals``). Belongs to the event loop's thread; no method blocks.

    ``sources`` give problems found elsewhere. ``rates`` are of messages and bytes, ``buried`` counts the dead letters
    of the last quarter of an hour. ``produce`` and ``end_to_end`` are the last minute's latencies, ``pace`` the shares
    of slow messages, ``counts`` the counted failures.

    Durations: ``disconnected`` of a session without subscription, ``saturated`` of one with a full window,
    ``unanswered`` of one whose SUBACK is late, ``leaderless`` of a topic without all its leaders, ``failing`` of a
    token that is not renewed. ``throttled``: nanoseconds of the last minute in which a quota delayed each broker's
    batches, by its number.
    """

    def __init__(self, worker: WorkerView, fail: Callable[[BaseException], None]) -> None:
        self._worker = worker
        self.vitals = Vitals(fail)
        self.sources: list[Callable[[], Iterable[Problem]]] = []  # of further problems
        self.disconnected = Lasting()  # sessions, since when; the next two alike
        self.saturated = Lasting()
        self.unanswered = Lasting()
        self.leaderless = Lasting()  # topics
        self.failing = Lasting()  # sides without a new token
        self._led: dict[
            tuple[str, int], tuple[int | None, int]
        ] = {}  # the leader of a waiting partition, and since when
        self._waited: dict[
            tuple[str, int], tuple[int, int]
        ] = {}  # by partition: the broker of the replica, and the last moment
        self._unbalanced = 0  # looks in a row with the same imbalance
        self._imbalance = 0
        self._made: deque[dict[str, object]] = deque(maxlen=LAST)  # dead letters that Kafka may not have yet
        self.last: deque[dict[str, object]] = deque(maxlen=LAST)  # dead letters that Kafka has
        metrics = worker.metrics
        self.rates = Rates(self._totals)
        self.buried = Rates(lambda: {"all": self.dead_letters()}, QUARTER_NS)
        self.throttled = Rates(self._held_ns, MINUTE_NS)  # by broker, the time for which it held us back
        self.produce = Window(lambda: [metrics.kafka_produce_seconds.child()])
        # Removed routes stay, so that the sum never falls.
        self._routes = dict.fromkeys(route.name for route in worker.settings.routes)
        self.end_to_end = Window(lambda: [metrics.end_to_end_seconds.child(name) for name in self._routes])
        self.pace = Pace(metrics, self._routes, self.vitals)
        looks = self._look_at_kafka, self._look_at_sessions, self._look_at_account
        self.vitals.looks += [*looks, self.rates.look, self.throttled.look]
        self.fsync = Window(lambda: [metrics.spool_fsync_seconds.child()])
        self.vitals.seldom += [self.produce.look, self.end_to_end.look, self.fsync.look]
        self.counts = Counts(metrics)
        self.vitals.minutely += [self.buried.look, self.counts.look]

    def adopt(self, settings: Settings) -> None:
        """Observe the routes of other settings, too."""
        self._routes |= dict.fromkeys(route.name for route in settings.routes)

    # --- once a second -----------------------------------------------------------------------------

    def _look_at_kafka(self, now_ns: int) -> None:
        """Note how long each partition waits and for whom, and ask brokers that may not answer."""
        worker = self._worker
        worker.kafka.partitions.look(now_ns)
        if not worker.kafka.started:
            return
        producer = worker.kafka.producer()
        if not producer.live:
            worker.kafka.contacts.unasked()
        suspects: set[int] = set()
        for queue in worker.kafka.partitions.queues.values():
            since_ns, place = self._unanswered_since_ns(queue), (queue.topic, queue.partition)
            if not since_ns:
                self._waited.pop(place, None)
                self._led.pop(place, None)
                continue
            leader = producer.leader(*place)
            known = self._led.get(place)
            if known is None or known[0] != leader:
                self._led[place] = leader, since_ns if known is None else now_ns
            if now_ns - since_ns > SUSPECT_NS:
                copies = producer.replicas(*place)[1]
                suspects.update(copies)
                if leader is not None:
                    suspects.add(leader)
                for copy in copies:
                    contact = worker.kafka.contacts.get(copy)
                    if copy != leader and contact and self.past(contact.asked_ns, now_ns) >= MUTE_NS:
                        self._waited[place] = copy, now_ns
        for contact in worker.kafka.contacts:
            if contact.asked_ns and not contact.led and now_ns - contact.asked_ns > LED_NS:
                contact.led = tuple(
                    place for place in worker.kafka.partitions.queues if producer.leader(*place) == contact.broker
                )
        queues = worker.kafka.partitions.queues

        def has_replicas(broker: int) -> bool:
            # A producer that is being replaced knows no replicas.
            return not producer.live or any(broker in producer.replicas(*place)[0] for place in queues)

        for contact in worker.kafka.contacts.due(suspects, has_replicas):
            producer.probe(contact)
        self.leaderless.look((t.name for t in worker.snapshot().topics if t.leaderless), now_ns)

    def _look_at_sessions(self, now_ns: int) -> None:
        """Note since when sessions are not subscribed, wait for SUBACK or have a full window, and logins fail."""
        sessions = self._worker.mqtt.sessions
        self.disconnected.look((s.plan.name for s in sessions if not s.subscribed), now_ns)
        self.unanswered.look((s.plan.name for s in sessions if s.awaits_suback), now_ns)
        full = (s.plan.name for s in sessions if s.window and s.unacked >= SATURATED * s.window)
        self.saturated.look(full, now_ns)
        sources = self._worker.outward.sources
        self.failing.look((side for side, source in sources.items() if source.failing), now_ns)

    def _look_at_account(self, _now_ns: int) -> None:
        imbalance = self._worker.ledger.imbalance()
        self._unbalanced = self._unbalanced + 1 if imbalance and imbalance == self._imbalance else 0
        self._imbalance = imbalance

    def note_dead_letter(self, route: str, reason: DeadLetterReason, error: BaseException, topic: str | None) -> None:
        """Remember one of the last dead letters, of this Kafka topic, without payload. Kafka may not have it yet."""
        text = str(error)
        cause = error.__cause__
        if isinstance(error, InterceptorError) and cause is not None and not isinstance(cause, GatewayError):
            # An exception of a user's interceptor may quote the payload.
            text = text.replace(str(cause), type(cause).__name__) if str(cause) else text
        self._made.append(
            {
                "at": moment(time.time()),
                "reason": reason.value,
                "topic": topic,
                "route": route,
                "text": text if len(text) <= TEXT else f"{text[:TEXT]}…",
            }
        )

    def dead_letter_stored(self, route: str, reason: str) -> None:
        """Kafka has a dead letter: move its note to the last ones."""
        for note in self._made:
            if (note["route"], note["reason"]) == (route, reason):
                self._made.remove(note)
                self.last.append(note)
                return

    # --- readings ------------------------------------------------------------------------------------

    def imbalance(self) -> int:
        """Messages missing in the ledger's balance for three looks in a row."""
        return self._imbalance if self._unbalanced >= 2 else 0

    def silence_rows(self) -> dict[tuple[str, ...], float]:
        """For the metric: seconds of silence by topic and partition. Of too many, the silent ones come first."""
        now_ns = time.monotonic_ns()
        rows = [(self.silent_ns(queue, now_ns), queue) for queue in self._worker.kafka.partitions.queues.values()]
        if len(rows) > MOST_PARTITIONS:
            rows.sort(key=lambda row: -row[0])  # stable: the others in the order they came into use
        return {(queue.topic, str(queue.partition)): silent / 1e9 for silent, queue in rows[:MOST_PARTITIONS]}

    def watch_metrics(self, metrics: Metrics) -> None:
        """Have the metrics read their values here and from the worker."""
        worker = self._worker
        metrics.kafka_partition_silence.watch_rows(self.silence_rows)
        metrics.kafka_partitions_leaderless.watch_rows(
            lambda: {(topic.name,): len(topic.leaderless) for topic in worker.snapshot().topics}
        )
        metrics.kafka_topic_missing.watch_rows(self._missing_topics)
        metrics.sockets.watch_rows(lambda: {(state,): count for state, count in sockets().items()})
        metrics.buffer_bytes.watch(worker.mqtt.buffered_bytes, "memory")
        metrics.buffer_records.watch(worker.kafka.partitions.messages, "memory")
        if worker.spooling is not None:
            spooling = worker.spooling
            metrics.buffer_bytes.watch(lambda: spooling.store.bytes, "disk")
            metrics.buffer_records.watch(spooling.spooler.messages, "disk")
            metrics.spool_segments.watch(lambda: spooling.store.segments)
            metrics.buffer_limit_bytes.child("disk").value = worker.settings.spool.max_bytes

    def _missing_topics(self) -> dict[tuple[str, ...], float]:
        snapshot, refused = self._worker.snapshot(), self._worker.kafka.refused_topics()
        return {(topic.name,): float(not topic.partitions and topic.name not in refused) for topic in snapshot.topics}

    def silent_ns(self, queue: PartitionQueue, now_ns: int) -> int:
        """How long records have waited for a partition without an acknowledgement, or since its quota's delay ended."""
        return self.past(self._unanswered_since_ns(queue), now_ns)

    def _unanswered_since_ns(self, queue: PartitionQueue) -> int:
        """Since when Kafka has acknowledged none of the records that wait for a partition; 0 while none wait.

        The time for which Kafka has asked us to send nothing, because of a quota, does not count.
        """
        since_ns = queue.unanswered_since_ns()
        if not since_ns:
            return 0
        return max(since_ns, self._worker.kafka.producer().held_until_ns(queue.topic, queue.partition))

    def led_ns(self, queue: PartitionQueue, now_ns: int) -> int:
        """For how long records have waited for the present leader of a partition; 0 while none wait."""
        return self.past(self._led.get((queue.topic, queue.partition), (None, 0))[1], now_ns)

    def waited_for(self, queue: PartitionQueue, now_ns: int) -> int | None:
        """The mute broker whose replica a partition waits for, or waited for until a moment ago; None without one."""
        broker, at_ns = self._waited.get((queue.topic, queue.partition), (None, 0))
        return broker if now_ns - at_ns < AFTERWARDS_NS else None

    def past(self, since_ns: int, now_ns: int) -> int:
        """The time since a moment, without the time in which the event loop stood still; 0 for none."""
        return max(0, now_ns - since_ns - self.vitals.stalls.since(since_ns, now_ns)) if since_ns else 0

    # --- counters ----------------------------------------------------------------------------------

    def dead_letters(self) -> int:
        return int(sum(self._worker.metrics.dlq_records.read().values()))

    def _held_ns(self) -> dict[str, float]:
        now_ns = time.monotonic_ns()
        return {str(c.broker): c.held_ns - max(0, c.held_until_ns - now_ns) for c in self._worker.kafka.contacts}

    def _totals(self) -> dict[str, float]:
        """Running totals, by the name that /status gives to their rates."""
        worker = self._worker
        ledger = worker.ledger
        return {
            "received_per_second": ledger.received,
            "delivered_per_second": ledger.delivered,
            "filtered_per_second": ledger.filtered,
            "dead_lettered_per_second": ledger.dead_lettered,
            "received_bytes_per_second": sum(session.received_bytes for session in worker.mqtt.all_sessions()),
            "sent_bytes_per_second": worker.metrics.kafka_sent_bytes.child().value,
        }
