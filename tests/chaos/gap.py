"""How long nothing came out of Kafka: the gap that a failure makes, as a consumer sees it."""

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.chaos.harness import Beside
from tests.waiting import wait_until


class Gap(Beside):
    """Reads a topic while its ``with`` block runs. ``longest_s`` is the longest time between two records.

    Enter it when records flow; the topic must be there. The measure is as fine as the load: at 500 messages a second,
    some 10 ms.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap, "group.id": "gap", "enable.auto.commit": False, "fetch.wait.max.ms": 10,
            "reconnect.backoff.max.ms": 500, "log_level": 0,
        }  # fmt: skip
        self._consumer = Consumer(settings)
        partitions = self._consumer.list_topics(topic, timeout=60).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        self._last_s = 0.0
        self.longest_s = 0.0

    def __exit__(self, *_error: object) -> None:
        super().__exit__()
        self._consumer.close()
        print(f"longest gap {self.longest_s:.2f} s")

    def restart(self) -> float:
        """Forget what was; the longest gap, in seconds, up to the next record, for which it waits."""
        now_s = time.monotonic()
        wait_until(lambda: self._last_s > now_s, "records flow")
        longest_s, self.longest_s = self.longest_s, 0.0
        return longest_s

    def _run(self) -> None:
        while not self._stop.is_set():
            if any(message.error() is None for message in self._consumer.consume(5000, 0.01)):
                now_s = time.monotonic()
                if self._last_s:
                    self.longest_s = max(self.longest_s, now_s - self._last_s)
                self._last_s = now_s
