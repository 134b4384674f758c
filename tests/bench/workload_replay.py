"""Workloads from the replay broker: a stream at full speed, from the first byte to the last acknowledgement."""

from tests.bench import replay
from tests.bench.account import SpanClock
from tests.bench.measurement import Measurement
from tests.bench.processes import BenchError, Helper
from tests.bench.site import Site
from tests.bench.subject import Launcher, Subject, running

_BUILD_S = 240.0  # making the packets of the longest stream
_CONNECT_S = 30.0
_PLAY_S = 400.0
_KAFKA_S = 30.0


def replayed(site: Site, launcher: Launcher, plan: replay.ReplayPlan) -> Measurement:
    """One run of a plan against one subject. Raises BenchError when a message or an acknowledgement is missing or
    out of place.
    """
    with site.room() as (topic, directory), Helper(replay.serve, plan) as broker:
        port = broker.receive(replay.Listening, _BUILD_S).port
        with running(launcher.start(site.place(port, topic, directory))) as subject:
            subscribed = broker.receive(replay.Subscribed, _CONNECT_S, subject.check_alive)
            subject.wait_ready()
            subject.wait_idle()
            clock = SpanClock(subject.pid)
            broker.send(replay.Go(subject.pid, _PLAY_S))
            outcome = broker.receive(replay.Outcome, _PLAY_S + 10, subject.check_alive)
            span = outcome.span
            spooled = subject.metrics().get("gateway_spool_messages", 0.0) if plan.qos else 0.0
            # At QoS 0 nothing is acknowledged, so this is the end. At QoS 1 the spool may have acknowledged for a slow
            # Kafka, which gets the records afterwards.
            site.kafka.wait_for_records(topic, plan.messages, _KAFKA_S)
            if not plan.qos:
                span = clock.stop()
            memory = subject.memory()
            check_ledger(subject, plan.messages)
            subject.stop()
        account = site.check_records(topic, plan.count, plan.cycles, in_order=plan.sessions == 1)
        details = {
            "window": float(subscribed.window),
            "acks_out_of_order": float(outcome.out_of_order),
            "duplicates": float(account.duplicates),
            "spooled": spooled,
        }
        return Measurement.of_span(plan.messages - plan.warm_up, span, memory, details)


def check_ledger(subject: Subject, messages: int) -> None:
    """The gateway's own account agrees: as many received as sent (or more, redelivered), and nothing unexplained."""
    metrics = subject.metrics()
    if not metrics:
        return  # a baseline has none
    for name in ("gateway_mqtt_messages_received_total", "gateway_ledger_imbalance"):
        if name not in metrics:
            raise BenchError(f"/metrics has no {name}")
    if metrics["gateway_ledger_imbalance"]:
        raise BenchError(f"the gateway's ledger is out of balance by {metrics['gateway_ledger_imbalance']:g} messages")
    received = metrics["gateway_mqtt_messages_received_total"]
    if received < messages:
        raise BenchError(f"the gateway counts {received:g} messages received where {messages} were sent")
