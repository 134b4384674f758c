"""Which groups of sessions there are, and that one's acknowledgements do not wait for another's messages."""

from bridge.produce.batch import Span
from config.settings import Settings
from gateway.base.group_plan import group_plans, session_names
from tests.unit.data_path import Path
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import manual_time

MIB = 1 << 20


def test_groups_share_out_the_memory_and_have_windows_of_their_own() -> None:
    groups = [{"name": "alarms", "sessions": 2, "receive_maximum": 10}, {"name": "state", "memory_bytes": 2 * MIB}]
    settings = Settings.model_validate({"mqtt": {"sessions": 3, "groups": groups}})
    plans = group_plans(settings)
    assert [plan.name for plan in plans] == ["", "alarms", "state"]
    assert [plan.settings.flow.memory_bytes for plan in plans] == [26 * MIB, 4 * MIB, 2 * MIB]
    assert [plan.settings.mqtt.receive_maximum for plan in plans] == [1000, 10, 1000]
    assert session_names(settings) == ["0", "1", "2", "alarms-0", "alarms-1", "state-0"]
    assert session_names(Settings()) == ["0", "1", "2", "3"]


@manual_time
async def test_a_group_is_acknowledged_while_anothers_partition_stands_still() -> None:
    kafka = FakeKafka()
    telemetry = kafka.topic("telemetry")
    kafka.topic("alarms")
    async with Path(kafka) as path:
        released: list[int] = []

        def completed(span: Span) -> None:
            released.append(span.stored)
            path.ledger.delivered += span.stored

        urgent = path.pipeline.accumulator(completed)
        path.pipeline.dead_letters(urgent, path.dead_letter_plan)
        telemetry.partitions[0].has_leader = False
        await path.sender.producer.refresh_metadata()
        stuck = path.send(b"stuck", "telemetry")
        urgent.now_ns = path.clock_ns()
        path.ledger.received += 1
        urgent.append(urgent.slot("alarms", 1, "alarms", 0), timestamp=7, key=b"k", value=b"fire", headers=[])
        urgent.flush()
        path.sender.pump()
        await path.until(lambda: released == [1], "the alarm is durable", within_s=1)
        assert not path.owner.released
        telemetry.partitions[0].has_leader = True
        await path.until(lambda: path.owner.released == [stuck], "the rest follows")
