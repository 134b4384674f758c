"""What the log says of going to the disk: an outage at once at both ends, flapping once a minute, nothing forgotten."""

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from bridge.produce.spool_episodes import Episodes

S = 1_000_000_000


def test_an_outage_has_its_start_and_its_end_at_once() -> None:
    episodes = Episodes()
    with capture_logs() as lines:
        for partition in range(12):
            episodes.begin("t", partition, partition * S // 100)
        assert [(line["event"], line["log_level"], line["topic"]) for line in lines] == [("spooling", "warning", "t")]
        for partition in range(12):
            episodes.tell(40 * S)
            episodes.end("t", partition, 40 * S)
        assert len(lines) == 1
        episodes.tell(40 * S)
    assert {**lines[1]} == {
        "event": "spool_drained", "log_level": "info", "topic": "t", "partitions": 12, "times": 1, "lasted_s": 40.0,
    }  # fmt: skip


def test_what_an_earlier_life_left_is_no_news_until_it_is_gone() -> None:
    episodes = Episodes()
    with capture_logs() as lines:
        episodes.begin("t", 0, 0, recovered=True)
        assert not lines
        episodes.end("t", 0, S)
        episodes.tell(2 * S)
        assert not lines
        episodes.begin("t", 1, 2 * S)
        episodes.end("t", 1, 3 * S)
        episodes.tell(None)  # the process ends
    assert [line["event"] for line in lines] == ["spooling", "spool_drained"]


@given(st.lists(st.tuples(st.integers(1, 9_000), st.integers(1, 9_000)), min_size=1, max_size=300))
def test_flapping_costs_a_pair_of_lines_a_minute_and_each_time_is_counted(visits: list[tuple[int, int]]) -> None:
    """Each visit: milliseconds until the disk is needed, and on it."""
    episodes, now_ns = Episodes(), 0
    with capture_logs() as lines:
        for away_ms, there_ms in visits:
            now_ns += away_ms * 1_000_000
            episodes.tell(now_ns)
            episodes.begin("t", 0, now_ns)
            now_ns += there_ms * 1_000_000
            episodes.end("t", 0, now_ns)
        episodes.tell(None)
    drained = [line for line in lines if line["event"] == "spool_drained"]
    assert sum(line["times"] for line in drained) == len(visits)
    assert len(lines) == 2 * len(drained)
    assert len(drained) <= 1 + now_ns / (60 * S)
