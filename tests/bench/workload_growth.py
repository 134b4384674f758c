"""What grows with the number of topics, sessions, partitions and routes: a large run beside a small one, in turn."""

from dataclasses import replace
from typing import Final

from tests.bench.measurement import Measurement
from tests.bench.publisher import Pace
from tests.bench.replay import ReplayPlan
from tests.bench.site import Site
from tests.bench.subject import Gateway
from tests.bench.workload_broker import live
from tests.bench.workload_replay import replayed

_PERIOD: Final = 50_000  # packet ids
_PLAIN: Final = Gateway(mqtt={"protocol": "3.1.1", "sessions": 1}, kafka={"compression": "none"})


def topics(site: Site, count: int) -> Measurement:
    """Each topic once before the span, all in the cache, whose size is the number of topics."""
    cycles = 1_000_000 // count
    known = replace(_PLAIN, flow={"route_cache_entries": max(_PERIOD, count)})
    few = replayed(site, known, ReplayPlan(_PERIOD, 1 + cycles * count // _PERIOD, 1, window=_PERIOD, warm_up=_PERIOD))
    many = replayed(site, known, ReplayPlan(count, 1 + cycles, 1, topics=count, window=_PERIOD, warm_up=count))
    bytes_each = (many.figures["rss_mib"] - few.figures["rss_mib"]) * 2**20 / (count - 1_000)
    return _beside(few, Measurement({**many.figures, "bytes_each": bytes_each}, many.details))


def devices_churn(site: Site) -> Measurement:
    """No topic comes twice. The cache of the defaults is full after the first 50,000."""
    large = site.scaled(1_000_000)
    plans = [
        ReplayPlan(size, 1, 1, topics=size, window=_PERIOD, warm_up=size - large // 5)
        for size in (large * 2 // 5, large)
    ]
    return _beside(*(replayed(site, _PLAIN, plan) for plan in plans))


def sessions_64(site: Site) -> Measurement:
    """As many messages, and as many in flight, in one session and in 64."""
    each, cycles = 1_000, site.scaled(20)
    one = ReplayPlan(64 * each, cycles, 1, period=32_000, window=32_000)
    many = ReplayPlan(each, 64 * cycles, 1, period=each, sessions=64, window=each // 2)
    room = replace(_PLAIN, flow={"memory_bytes": "128MiB"})  # for 64 windows
    sessions = replace(room, mqtt={"protocol": "3.1.1", "sessions": 64})
    return _beside(replayed(site, room, one), replayed(site, sessions, many))


def partitions_1000(site: Site) -> Measurement:
    """Each of the 1,000 devices nearly has a partition to itself, so a batch has one record."""
    pace = Pace(site.scaled(50_000), 5_000)
    return _beside(*(live(site, Gateway(), pace, partitions) for partitions in (12, 1_000)))


def routes_500(site: Site) -> Measurement:
    """Topics that come once, so that each message is routed."""
    plan = ReplayPlan(size := site.scaled(200_000), 1, 1, topics=size, window=_PERIOD)
    return _beside(*(replayed(site, replace(_PLAIN, routes=routes), plan) for routes in (1, 500)))


def _beside(small: Measurement, large: Measurement) -> Measurement:
    """The large run's figures, with its CPU as a multiple of the small one's."""
    times = large.figures["cpu_s_per_million"] / small.figures["cpu_s_per_million"]
    details = {f"small_{name}": value for name, value in small.figures.items()}
    return Measurement({**large.figures, "times_small": times}, {**large.details, **details})
