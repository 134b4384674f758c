"""What is seen of a worker over time goes on over a reload."""

from unittest.mock import Mock

from config.settings import Settings
from gateway.base.metrics import Metrics
from gateway.health.observation import Observation


def made(*names: str) -> Settings:
    return Settings(routes=[{"name": name, "filters": [f"{name}/#"], "topic": "t"} for name in names])


def test_latencies_are_those_of_the_last_minute_whatever_routes_come_and_go() -> None:
    """A route that is gone takes nothing away from the others; one that is back brings nothing old along."""
    settings = made("a", "b")
    worker = Mock(settings=settings, metrics=Metrics(settings))
    seen = Observation(worker, worker.fail)

    def take(name: str, count: int) -> None:
        worker.metrics.end_to_end_seconds.child(name).observe_many(5_000_000, count)

    def reload(settings: Settings) -> None:
        worker.settings = settings
        seen.adopt(settings)

    take("b", 100)
    seen.end_to_end.look()
    reload(made("a"))
    take("a", 1)
    assert sum(seen.end_to_end.counts()) == 1
    for _ in range(20):
        seen.end_to_end.look()
    reload(made("a", "b"))
    assert sum(seen.end_to_end.counts()) == 0
