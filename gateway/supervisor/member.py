"""A worker's end of the channel to its supervisor, and its wait for the slot once it is warm."""

import asyncio
import contextlib
import ctypes
import json
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import structlog

from config.error_words import words
from config.errors import GatewayError
from config.loading.transfer import from_json
from config.settings import Settings
from gateway.base.lifecycle import StopRequest, StopVerb
from gateway.base.process import memory
from gateway.data_dir.directory import holder
from gateway.http.answers import Answers
from gateway.supervisor.channel import Channel, Message, open_channel

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("worker")

WORKER_NAME: Final = "gateway-worker"  # 15 bytes at most
_PR_SET_NAME: Final = 15  # linux/prctl.h
_PROC: Final = Path("/proc")
_LOOK_S: Final = 0.02
_MOVED_S: Final = 1.0  # between two checks for progress
_GRACE_S: Final = 3.0  # beyond the deadline of the process that still has the slot


class Membership:
    """A component between Kafka and the parts that only one process of a slot may have: lock, spool, MQTT sessions.

    Its ``start`` reports the worker as warm and returns when the slot is free. Its ``stop`` runs after those parts have
    stopped and reports the slot as free; slower parts close later.

    ``retiring``: the worker only drains and ends the slot's sessions and spool, then stops. ``successor``: another
    worker has the slot until the supervisor sends ``go``.
    """

    name: Final = "slot"

    def __init__(self, sock: socket.socket, settings: Settings, *, retiring: bool, successor: bool) -> None:
        self.retiring = retiring
        self.successor = successor
        self.is_orphan = False  # the supervisor has ended
        self._socket = sock
        self._settings = settings
        self._stop: StopRequest | None = None
        self._answers: Answers | None = None
        self._channel: Channel | None = None
        self._go = asyncio.Event()
        if not successor:
            self._go.set()  # the supervisor may still be loading
        self._answering: set[asyncio.Task[None]] = set()
        self._reload: Callable[[str, Settings | None], Awaitable[list[str]]] | None = None
        self._progress: Callable[[], object] = lambda: None  # a value that changes with progress
        self._telling: asyncio.Task[None] | None = None

    async def open(
        self,
        stop: StopRequest,
        answers: Answers,
        reload: Callable[[str, Settings | None], Awaitable[list[str]]],
        progress: Callable[[], object],
    ) -> None:
        """Listens to the supervisor from now on; if that ends, requests a stop that keeps the sessions. ``reload`` does
        the steps of a reload, and raises GatewayError for a failed one. The value of ``progress`` changes while the
        worker makes progress."""
        self._stop, self._answers, self._reload, self._progress = stop, answers, reload, progress
        self._channel = await open_channel(self._socket, self._take_message, self._lost)
        self._say("up")
        self._telling = asyncio.create_task(self._tell_progress(), name="tell progress")

    async def start(self) -> None:
        """Returns when the slot is free, or will not be: the identity reports that, so nothing is raised."""
        memory.freeze_loaded_objects()  # the cost of the first collection is paid before messages arrive
        self._say("warm")
        await self._go.wait()
        await self._wait_for_slot()

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - there is nothing to wait for
        self._end_telling()
        self._say("released")

    async def _wait_for_slot(self) -> None:
        """Wait while a worker holds the slot: one whose supervisor died drains until its deadline."""
        directory, slot = self._settings.data_dir, self._settings.worker
        patience_s = self._settings.shutdown_timeout.total_seconds() + _GRACE_S
        began = time.monotonic()
        process = None
        while time.monotonic() - began < patience_s:
            found = holder(directory, slot)
            if found is None or not _is_member(found):
                return
            if found != process:
                process = found
                _log.info("slot_busy", process=process, patience_s=patience_s)
            await asyncio.sleep(_LOOK_S)

    # --- messages to the supervisor ---

    def ready(self) -> None:
        """The worker has the slot and delivers messages."""
        self._end_telling()
        self._say("ready")

    def failed(self, error: BaseException) -> None:
        """The worker ends because of this error, perhaps before ``open``."""
        sentence = str(error) if isinstance(error, GatewayError) else words(error)
        if self._channel is None:
            self._socket.sendall(json.dumps({"say": "failed", "sentence": sentence}).encode() + b"\n")
        else:
            self._say_last("failed", sentence=sentence)

    def stopped(self, unacked: int) -> None:
        """The worker has stopped; ``unacked`` messages will be sent again."""
        self._say_last("stopped", unacked=unacked)

    async def _tell_progress(self) -> None:
        """Reports progress, so that the supervisor waits for a long start or step of a reload."""
        seen = self._progress()
        while True:
            await asyncio.sleep(_MOVED_S)
            before, seen = seen, self._progress()
            if seen != before:
                self._say("up")

    def _end_telling(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None

    def _say(self, word: str, **more: object) -> None:
        if self._channel is not None:
            self._channel.send(say=word, **more)

    def _say_last(self, word: str, **more: object) -> None:
        """Says it and answers nothing more: a thread may keep the process, and its loop, from ending. The supervisor
        then kills it."""
        self._say(word, **more)
        if self._channel is not None:
            self._channel.close()

    # --- messages from the supervisor ---

    def _take_message(self, message: Message) -> None:
        """Begin what the supervisor says: go, an immediate stop, a question (``ask``), or a step of a reload."""
        match message:
            case {"say": "go"}:
                self._go.set()
            case {"say": "hasten"}:
                assert self._stop is not None
                self._stop.force()
            case {"say": "ask", "number": int(number), "path": str(path), "accept": str(accept)}:
                self._begin(self._answer(number, path, accept), f"answer {path}")
            case {"say": "reload", "number": int(number), "step": str(step), "settings": settings}:
                self._begin(self._take_reload_step(number, step, settings), f"reload: {step}")
            case _:
                _log.warning("supervisor_said_nonsense", message=json.dumps(message)[:200])

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _take_reload_step(self, number: int, step: str, text: str | None) -> None:
        """Take the step and report its outcome. ``text``: the settings as JSON, None for a step without."""
        assert self._reload is not None
        sentence, remarks = None, []
        telling = asyncio.create_task(self._tell_progress(), name="tell progress")
        try:
            remarks = await self._reload(step, None if text is None else from_json(text))
        except GatewayError as error:
            sentence = str(error)
        except Exception as error:  # noqa: BLE001 - the supervisor waits for an answer, and rolls back after this one
            _log.exception("reload_step_failed", step=step)
            sentence = f"the step {step!r} failed by a defect ({words(error)}): see its traceback in the log."
        finally:
            telling.cancel()
        self._say("reloaded", number=number, sentence=sentence, remarks=remarks)

    async def _answer(self, number: int, path: str, accept: str) -> None:
        assert self._answers is not None
        answer = await self._answers.answer(path, accept)
        self._say("answer", number=number, status=answer.status, type=answer.type, body=answer.body)

    def _lost(self) -> None:
        assert self._stop is not None
        self.is_orphan = True
        if not self._stop.requested:
            _log.warning("supervisor_gone", consequence="this worker stops; its sessions wait for the next one")
            self._stop.request(StopVerb.RESTART)


def _is_member(pid: int) -> bool:
    """Whether a process is a supervisor's worker, which will release the slot soon: its supervisor died or stops it.
    Any other process keeps the slot, so waiting is useless."""
    if not _PROC.exists():
        return True  # unknown on this system
    process = _PROC / str(pid)
    try:
        named = (process / "comm").read_text().strip() == WORKER_NAME
        return named or b"--channel" in (process / "cmdline").read_bytes()
    except OSError:
        return False


def name_process() -> None:
    """Name this process for the system's tools: a forked one has its supervisor's command line. On Linux."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, WORKER_NAME.encode(), 0, 0, 0)
