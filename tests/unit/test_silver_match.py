"""Which files of silver a batch looks through: all that can hold an original, and few others."""

from streaming.lake.ranges import TimeRange
from streaming.silver.match import Places, Slice, divided, match_condition, reject_condition

DAY_US = 86_400_000_000


def test_the_condition_names_the_days_of_the_times_and_lets_wrong_clocks_lie_on_any_day() -> None:
    assert match_condition([TimeRange(DAY_US - 1, DAY_US + 1), TimeRange(20 * DAY_US, 20 * DAY_US + 6)]) == (
        "t.record_id = s.record_id AND ("
        "t.device_time BETWEEN TIMESTAMP '1970-01-01 23:59:59.999999' AND TIMESTAMP '1970-01-02 00:00:00.000000'"
        " OR t.device_time BETWEEN TIMESTAMP '1970-01-21 00:00:00.000000' AND TIMESTAMP '1970-01-21 00:00:00.000005')"
        " AND (t.clock_ahead OR t.event_date IN (DATE '1970-01-01', DATE '1970-01-02', DATE '1970-01-21'))"
    )


def test_more_days_than_can_be_listed_are_not() -> None:
    condition = match_condition([TimeRange(0, 500 * DAY_US + 1)])
    assert "event_date" not in condition
    assert "t.device_time BETWEEN" in condition


def test_times_beyond_the_calendar_are_cut_at_its_ends() -> None:
    assert "TIMESTAMP '1970-01-01 00:00:00.000000' AND TIMESTAMP '9999-12-31 23:59:59.999999'" in match_condition(
        [TimeRange(-DAY_US, 2**62 + 1)]
    )


def test_a_reject_is_looked_for_at_its_place_and_on_its_days() -> None:
    same = " AND ".join(
        f"t.{name} = s.{name}" for name in ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_time")
    )
    place = Places("it's\\", 3, 7, 9, DAY_US - 1, DAY_US)
    at = "(t.kafka_topic = 'it\\'s\\\\' AND t.kafka_partition = 3 AND t.kafka_offset BETWEEN 7 AND 9)"
    days = "t.ingest_date BETWEEN DATE '1970-01-01' AND DATE '1970-01-02'"
    assert reject_condition([]) == same
    assert reject_condition([place]) == f"{same} AND ({at}) AND {days}"
    assert "ingest_date" not in reject_condition([place, place._replace(first_us=-1)])
    many = [Places("t", number, number, 200 - number, 0, 0) for number in range(65)]
    assert "(t.kafka_offset BETWEEN 0 AND 200)" in reject_condition(many)


def test_strays_are_few_rows_of_other_days_and_those_without_a_clock() -> None:
    now = Slice(1000, True, TimeRange(20 * DAY_US, 20 * DAY_US + 1))
    beside = Slice(3, True, TimeRange(20 * DAY_US + 9, 21 * DAY_US))
    late = Slice(2, True, TimeRange(3 * DAY_US, 3 * DAY_US + 1))
    clockless = Slice(500, False, TimeRange(20 * DAY_US, 20 * DAY_US + 1))
    assert divided([late, now, clockless, beside]) == ([beside, now], [late, clockless])
    assert divided([clockless]) == ([clockless], [])
    assert divided([]) == ([], [])
    backlog = late._replace(rows=500)
    assert divided([now, backlog]) == ([backlog, now], []), "a site that was offline brings more than a few"


def test_strays_are_looked_for_among_their_devices_alone() -> None:
    day = "t.device_time BETWEEN TIMESTAMP '1970-01-0{0} 00:00:00.000000' AND TIMESTAMP '1970-01-0{0} 00:00:00.000000'"
    times, strays = [TimeRange(DAY_US, DAY_US + 1)], [TimeRange(0, 1)]
    assert match_condition(times, strays, {"b", "it's"}) == (
        f"t.record_id = s.record_id AND ({day.format(2)} OR ({day.format(1)}) AND"
        " (t.device BETWEEN 'b' AND 'b' OR t.device BETWEEN 'it\\'s' AND 'it\\'s'))"
        " AND (t.clock_ahead OR t.event_date IN (DATE '1970-01-01', DATE '1970-01-02'))"
    )
    assert match_condition(times, strays).count("device_time") == 2
    many = [f"d{number:03}" for number in range(130)]
    assert match_condition([], strays, many).count("t.device BETWEEN") == 44
    assert "BETWEEN 'd129' AND 'd129'" in match_condition([], strays, many)
