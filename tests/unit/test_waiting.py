"""Tasks that are no longer wanted end, whatever they did before; who waits for their end can be cancelled himself."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from auth.backends.users_file import UsersFileAuthenticator
from auth.jwt.jwks import JwksKeys
from auth.outward.keeper import Found, Keeper
from bridge.errors import UnreachableError
from bridge.waiting import end_tasks, report_failure
from config.loading.load import Loaded
from config.settings import Settings
from config.tables.auth import AuthJwtKeySettings, AuthSettings, AuthUsersFileSettings
from gateway.auth_service.process import _Files
from gateway.base.lifecycle import StopRequest
from gateway.base.metrics import Metrics
from gateway.mqtt.login import Login
from gateway.mqtt.renewal import Renewals
from gateway.worker.reload_alone import AloneReload
from gateway.worker.worker import Worker
from tests.servers.token_source import MadeTokens
from tests.unit.manual_time import ManualLoop, manual_time


def complaints() -> list[Any]:
    """What the running loop was told of, by tasks that nobody refers to any more."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ManualLoop)
    gc.collect()
    told = [context["exception"] for context in loop.complaints]
    loop.complaints.clear()
    return told


async def never() -> None:
    await asyncio.Event().wait()


async def refuse(started: asyncio.Event, may_end: asyncio.Event) -> None:
    """Ignore the cancellation until the test lets it end."""
    try:
        started.set()
        await never()
    finally:
        await may_end.wait()


@manual_time
async def test_a_running_task_is_cancelled_and_has_ended() -> None:
    tasks = [asyncio.create_task(never()) for _ in range(3)]
    await end_tasks(*tasks, None)
    assert all(task.cancelled() for task in tasks)


@manual_time
async def test_a_task_that_has_ended_is_left_as_it_is() -> None:
    ended = asyncio.create_task(asyncio.sleep(0, "result"))
    await ended
    waiting = asyncio.create_task(end_tasks(ended, None))
    await asyncio.sleep(0)
    assert waiting.done(), "there is nothing to wait for"
    assert ended.result() == "result"


async def broken(*, at_once: bool) -> None:
    try:
        if not at_once:
            await never()
    finally:
        raise UnreachableError("gone")


@pytest.mark.parametrize("before", [True, False])
@manual_time
async def test_an_error_that_nobody_reads_is_logged_and_not_raised(before: bool) -> None:
    task: asyncio.Task[None] | None = asyncio.create_task(broken(at_once=before))
    await asyncio.sleep(0)
    await end_tasks(task)
    assert not complaints(), "somebody may still read it"
    del task
    assert [type(error) for error in complaints()] == [UnreachableError]


@pytest.mark.parametrize("callback", [True, False])
@pytest.mark.parametrize("before", [True, False])
@manual_time
async def test_an_error_that_somebody_wants_is_told_once(before: bool, callback: bool) -> None:
    told: list[BaseException] = []
    task: asyncio.Task[None] | None = asyncio.create_task(broken(at_once=before))
    assert task is not None
    if callback:
        task.add_done_callback(report_failure(told.append))
    await asyncio.sleep(0)
    await end_tasks(task, failed=None if callback else told.append)
    await asyncio.sleep(0)
    del task
    assert [type(error) for error in told] == [UnreachableError]
    assert not complaints()


@manual_time
async def test_a_cancellation_and_a_result_are_no_failures() -> None:
    told: list[BaseException] = []
    tasks = [asyncio.create_task(work) for work in (never(), asyncio.sleep(0))]
    for task in tasks:
        task.add_done_callback(report_failure(told.append))
    await asyncio.sleep(0)
    await end_tasks(*tasks, failed=told.append)
    await asyncio.sleep(0)
    assert not told


@manual_time
async def test_the_end_is_awaited_for_as_long_as_patience_lasts() -> None:
    started, may_end = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(refuse(started, may_end))
    await started.wait()
    await end_tasks(task, patience_s=2.0)
    assert not task.done()
    may_end.set()
    await end_tasks(task)
    assert task.cancelled()


@manual_time
async def test_a_caller_that_is_cancelled_does_not_wait() -> None:
    started, may_end = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(refuse(started, may_end))
    await started.wait()
    caller = asyncio.create_task(end_tasks(task))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert not task.done()
    may_end.set()
    await asyncio.wait([task])
    assert task.cancelled(), "it was cancelled before the caller was"


# --- the parts that end a task of theirs --------------------------------------------------------------

Part = tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]]  # its start, and its end


def renewals(_folder: Path) -> Part:
    settings = Settings.model_validate({"mqtt": {"username": "u", "token": {"value": "x"}}})
    part = Renewals(Login(settings.mqtt, MadeTokens(lambda: "t")), list, Metrics(settings))
    return part.start, lambda: part.stop(0)


def files_of_the_access_service(_folder: Path) -> Part:
    part = _Files(None, cast("Any", None), cast("Any", None))
    return part.start, lambda: part.stop(0)


def reload_without_a_supervisor(folder: Path) -> Part:
    settings = Settings.model_validate(
        {"data_dir": folder, "routes": [{"name": "telemetry", "filters": ["a/#"], "topic": "orders"}]}
    )
    loaded = Loaded(settings, {}, (), None)
    part = AloneReload(loaded, lambda: loaded)

    async def start() -> None:
        part.attach(Worker(settings, StopRequest()))

    return start, part.close


def keys_of_an_issuer(_folder: Path) -> Part:
    part = JwksKeys(
        AuthJwtKeySettings(name="k", jwks_url="http://127.0.0.1:9/", algorithms=("RS256",)), "auth.jwt.keys"
    )
    return part.start, part.close


def token(_folder: Path) -> Part:
    async def find() -> Found:
        await never()
        raise AssertionError

    part = Keeper(find, cast("Any", Plan()), "mqtt.token")
    return part.start, part.close


class Plan:
    """When a token is due: now."""

    def began(self, _now_ns: int) -> None:
        pass


def file_of_users(folder: Path) -> Part:
    file = folder / "users.csv"
    file.write_text("")
    settings = AuthSettings(users_file=AuthUsersFileSettings(file=file))
    part = UsersFileAuthenticator(settings, cast("Any", None), cast("Any", None))
    return part.start, part.close


PARTS = (
    renewals, files_of_the_access_service, reload_without_a_supervisor, keys_of_an_issuer, token, file_of_users
)  # fmt: skip


@pytest.mark.parametrize("make", PARTS)
async def test_a_cancelled_stop_that_waits_for_its_task_ends(make: Callable[[Path], Part], tmp_path: Path) -> None:
    start, stop = make(tmp_path)
    await start()
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    stopping.cancel()
    await asyncio.wait([stopping])
    assert stopping.cancelled()
