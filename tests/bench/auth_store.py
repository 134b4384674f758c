"""What the built-in database costs by its size: the same questions of one with 1,000 users and of one with 100,000.

``python -m tests.bench.auth_store [USERS [RULES_EACH]]`` prints a JSON object. CPU time, not wall time; both databases
are asked in turns within one process, so that a busy machine disturbs both alike.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from auth import passwords
from auth.model import Rule, Subject
from auth.store.records import User
from auth.store.store import Store

ROUNDS = 15
QUESTIONS = 2000


def build(path: Path, users: int, rules_each: int) -> float:
    """A database with so many devices, each with rules of its own; returns the seconds that it took."""
    store = Store(path)
    store.open()
    began = time.monotonic()
    with store.edit("bench") as edit:
        key = edit.current_device_key()
        stored = passwords.hash_device_secret("x" * 32, key)
        for number in range(users):
            edit.users.add(User("username", f"device-{number:06d}", stored), audited=False)
        edit.rules.extend(
            Rule("allow", f"site/{number % 50}/device-{number:06d}/{topic}/#", (("username", f"device-{number:06d}"),))
            for number in range(users)
            for topic in range(rules_each)
        )
        edit.rules.extend([Rule("allow", "devices/${username}/#"), Rule("deny", "#")])
    store.close()
    return time.monotonic() - began


class Asked:
    """A database under measurement."""

    def __init__(self, path: Path, users: int) -> None:
        began = time.perf_counter()
        self.store = Store(path)
        self.store.open()
        self.open_ms = (time.perf_counter() - began) * 1000
        self._users = users
        self._random = random.Random(1)
        self.login_us: list[float] = []
        self.rules_us: list[float] = []

    def ask(self) -> None:
        """One round: a login's look-ups, then an access's, of random devices."""
        names = [f"device-{self._random.randrange(self._users):06d}" for _ in range(QUESTIONS)]
        store = self.store
        began = time.process_time()
        for name in names:
            store.find_ban(name, name, "10.0.0.1", 0)
            assert store.find_user("username", name) is not None
        self.login_us.append((time.process_time() - began) / QUESTIONS * 1e6)
        subjects = [Subject(name, name, "10.0.0.1") for name in names]
        began = time.process_time()
        for subject in subjects:
            assert len(store.rules_for(subject)) > 2
        self.rules_us.append((time.process_time() - began) / QUESTIONS * 1e6)


def resident_mib(path: Path, users: int) -> tuple[float, float]:
    """Memory of a fresh process with the database open, and after it has been asked about everybody."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom auth.store.store import Store\nfrom auth.model import Subject\n"
        "def rss():\n    return int(Path('/proc/self/statm').read_text().split()[1]) * 4096 / (1 << 20)\n"
        "store = Store(Path(sys.argv[1]))\nstore.open()\nfirst = rss()\n"
        "for number in range(int(sys.argv[2])):\n    name = f'device-{number:06d}'\n"
        "    store.find_user('username', name)\n    store.rules_for(Subject(name))\n"
        "print(first, rss())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(path), str(users)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    first, last = ran.stdout.split()
    return float(first), float(last)


def measure(users: int, rules_each: int) -> dict[str, Any]:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder, "small", "auth.sqlite3"), Path(folder, "large", "auth.sqlite3")
        build(small, 1000, rules_each)
        build_s = build(large, users, rules_each)
        both = [Asked(small, 1000), Asked(large, users)]
        for one in both:
            one.ask()  # the pages that everybody needs are in memory
            one.login_us.clear()
            one.rules_us.clear()
        for _ in range(ROUNDS):
            for one in both:
                one.ask()
        first_mib, last_mib = resident_mib(large, users)
        result: dict[str, Any] = {
            "users": users,
            "rules": users * rules_each + 2,
            "file_mib": round(large.stat().st_size / (1 << 20), 1),
            "build_s": round(build_s, 1),
            "open_ms": [round(one.open_ms, 1) for one in both],
            "rss_open_mib": round(first_mib, 1),
            "rss_asked_mib": round(last_mib, 1),
        }
        for name in ("login_us", "rules_us"):
            middle = [statistics.median(getattr(one, name)) for one in both]
            result[name] = [round(value, 1) for value in middle]
            result[f"{name}_ratio"] = round(middle[1] / middle[0], 2)
        for one in both:
            one.store.close()
        return result


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    print(json.dumps(measure(*given, *(100_000, 10)[len(given) :]), indent=2))
