"""Common moments for what a worker looks at every so often. Each wake-up of an idle process costs as much as the look
itself, so looks of the same interval, or of a multiple of it, share one."""

import asyncio


def until_beat_s(interval_s: float) -> float:
    """Seconds until the next multiple of an interval by the event loop's clock; a beat that is too near is left out."""
    left_s = interval_s - asyncio.get_running_loop().time() % interval_s
    return left_s if left_s > interval_s / 8 else left_s + interval_s
