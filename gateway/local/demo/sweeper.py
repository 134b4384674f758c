"""The process that ends what Spark would leave running; see ``_sweeper.py``."""

import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

_SCRIPT = Path(__file__).with_name("_sweeper.py")
_MARK_NAME = "DEMO_RUN"
_PATIENCE_S = 30.0


class Sweeper:
    """Waits beside us for our end, or for :meth:`sweep`, to kill every process started with :attr:`environment`.

    ``remove`` names directories to delete after that.
    """

    def __init__(self, remove: Sequence[Path] = ()) -> None:
        mark = uuid.uuid4().hex
        self.environment = {_MARK_NAME: mark}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), f"{_MARK_NAME}={mark}", *map(str, remove)],
            stdin=subprocess.PIPE,
            env={},  # without the mark: it must not find itself
            start_new_session=True,
        )

    def sweep(self) -> bool:
        """Kills now and returns when all are gone; False if some could not be killed. Blocks. Safe to call twice."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(_PATIENCE_S) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
