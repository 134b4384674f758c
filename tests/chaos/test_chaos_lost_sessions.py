"""EMQX loses a session with all it held, or a node with sessions that still get messages: the page says so."""

from config.errors import ExitStatus
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.scripted_rules import Rules
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import Gateway, account
from tests.chaos.operate_case import Site
from tests.waiting import wait_until

LOST = "gateway_mqtt_lost_sessions"


def session_lost(gateway: Gateway) -> str:
    return next((one["text"] for one in gateway.problems() if one["id"] == "session-lost"), "")


def test_a_lost_session_is_said_and_accounted_for_until_it_was_seen(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """The mailbox of one of four overflows; the gateway is killed at once, before its ledger has the interval."""
    with Site(Rules(max_mailbox=100, max_inflight=1000, queue=100_000)) as site:
        broker, rest = site.broker, site.rest
        gateway = make_gateway(
            broker.port, kafka.bootstrap, unique,
            emqx={"url": rest.url, "api_key": "key", "api_secret": "secret", "interval": "1s", "timeout": "1s"},
            ledger={"interval": "1h", "topic": f"{unique}-ledger"},  # other tests' gateways have the same name
            mqtt={"addresses": [f"mqtt://127.0.0.1:{broker.port}"], "reconnect_initial": "20ms"},
        )  # fmt: skip
        gateway.start()
        wait_until(lambda: gateway.metric("gateway_emqx_up") == 1, "EMQX is looked at")
        assert gateway.metric(LOST) == 0
        broker.start_load(1000)
        broker.call(lambda: broker.broker.stall("gateway-0-2"))
        wait_until(lambda: gateway.metric(LOST) == 1, f"the loss is noticed; {gateway.tail()}")
        wait_until(lambda: "EMQX counted none of it" in session_lost(gateway), "EMQX's counters are read")
        assert "session 2 (gateway-0-2) at " in session_lost(gateway)
        gateway.kill()
        gateway.start()
        assert "session 2 (gateway-0-2) at " in session_lost(gateway), "it outlives the process"
        assert len(gateway.status()["lost_sessions"]) == 1
        published = broker.stop_load()
        wait_until(broker.drained, f"everything that EMQX kept is acknowledged; {gateway.tail()}")
        code, said = gateway.command("acknowledge")
        assert (code, "Acknowledged: 1." in said) == (ExitStatus.OK, True), said
        wait_until(lambda: gateway.metric(LOST) == 0 and not session_lost(gateway), "it was seen")
        wait_until(gateway.settled, "nothing is in its spool")
        gateway.stop()
        lost = broker.call(lambda: len(broker.broker.lost_messages))
        found = account(kafka.bootstrap, unique, published, deadline_s=0)
        assert len(found.missing) == lost > 100, "what is missing is what was in the session"
        code, said = gateway.command("verify")
        assert code == ExitStatus.UNJUDGED, said
        assert said.count("a session was lost, its contents are unknown") == 1, said
        assert "MISSING" not in said


def test_a_node_that_dies_with_sessions_is_said_until_it_was_forced_to_leave(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """Its half of the four sessions comes back at the other node, beside their own dead selves."""
    with Site(Rules(), nodes=2) as site:
        broker, rest = site.broker, site.rest
        ports = [node.port for node in broker.broker.nodes]
        gateway = make_gateway(
            broker.port, kafka.bootstrap, unique,
            emqx={"url": rest.url, "api_key": "key", "api_secret": "secret", "interval": "1s", "timeout": "1s"},
            mqtt={"addresses": [f"mqtt://127.0.0.1:{port}" for port in ports], "reconnect_initial": "20ms"},
        )  # fmt: skip
        gateway.start()
        wait_until(lambda: gateway.metric("gateway_emqx_up") == 1, "EMQX is looked at")

        def at() -> list[int]:
            return broker.call(lambda: sorted(session.node.port for session in broker.broker.sessions.values()))

        assert at() == sorted(ports * 2), "the sessions are spread over the nodes"
        second = broker.broker.nodes[1]
        broker.run(broker.broker.kill_node(second))
        wait_until(lambda: at() == [ports[0]] * 4, f"all are at the node that lives; {gateway.tail()}")
        broker.start_load(500)

        def dead() -> str:
            return next((one["text"] for one in gateway.problems() if one["id"] == "emqx-members-dead"), "")

        wait_until(lambda: gateway.metric("gateway_emqx_dead_members") == 2, f"it is counted; {gateway.tail()}")
        assert "Node emqx1@127.0.0.1 of EMQX's cluster is stopped, and 2 of the 6 members" in dead()
        vanished = broker.call(lambda: len(broker.broker.vanished))
        wait_until(lambda: broker.call(lambda: len(broker.broker.vanished)) > vanished, "it is so")
        code, said = gateway.command("doctor", "--only", "emqx")
        assert "emqx1@127.0.0.1 (stopped)" in said, (code, said)
        broker.call(lambda: broker.broker.force_leave(second))
        wait_until(lambda: not dead(), "it ends when the node has left")
        vanished = broker.call(lambda: len(broker.broker.vanished))
        broker.stop_load()
        assert gateway.metric("gateway_emqx_dead_members") == 0
        assert broker.call(lambda: len(broker.broker.vanished)) == vanished


def test_a_session_lost_on_its_way_to_another_slot_is_said(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """One worker with two sessions becomes two workers with one each, by the same client ids."""
    with Site(Rules()) as site:
        broker = site.broker
        gateway = make_gateway(
            broker.port, kafka.bootstrap, unique, mqtt={"client_id": "${instance}-${session}", "sessions": 2}
        )
        gateway.start()
        assert gateway.metric(LOST) == 0, "the first connects ever"
        gateway.stop()
        broker.call(lambda: broker.broker.kick("gateway-1"))
        gateway.configure(worker=1, mqtt={"client_id": "${instance}-${worker}", "sessions": 1})
        gateway.start()
        assert gateway.metric(LOST) == 1, gateway.tail()
        assert "session 0 (gateway-1) at " in session_lost(gateway)
        gateway.stop()
        gateway.configure(worker=0)
        gateway.start()
        assert gateway.metric(LOST) == 0, "gateway-0 stood all the time, and gateway-1 is the other slot's"
        gateway.stop()
