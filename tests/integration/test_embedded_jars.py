"""Fetching jars through the real Ivy from a repository on this machine: what can go wrong, and what that leaves."""

import base64
import hashlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.local.runtime import jars
from gateway.local.runtime.errors import ChecksumError, DownloadError, EmbeddedError
from gateway.local.runtime.java import ensure_java
from gateway.local.runtime.progress import Download
from tests.servers.authority import Authority
from tests.waiting import DEADLINE_S

FAR = "http://repository.invalid"  # answers through a proxy alone
FILES = {"alpha": b"a" * 300_000, "beta": b"b" * 200_000, "gamma-core": b"c" * 1000}


class Repository(http.server.ThreadingHTTPServer):
    """A Maven repository of three jars. ``hold`` names a path that is sent by half and then hangs; also a proxy."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {f"/org/example/{name}/1.0/{name}-1.0.jar": content for name, content in FILES.items()}
        self.requests: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        self.hold: str | None = None
        self.holding = threading.Event()
        self.release = threading.Event()
        self.password: str | None = None
        self.demand = (401, "WWW-Authenticate", "Authorization")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fetched(self) -> list[str]:
        """The names of the jars asked for with GET, in order."""
        return [path.rpartition("/")[2] for method, path in self.requests if method == "GET" and path.endswith(".jar")]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Repository

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = self.path.removeprefix("http://repository.invalid")
        with self.server.lock:
            self.server.requests.append((self.command, path))
        if self.server.password is not None:
            status, question, answer = self.server.demand
            expected = "Basic " + base64.b64encode(self.server.password.encode()).decode()
            if self.headers.get(answer) != expected:
                self.send_response(status)
                self.send_header(question, 'Basic realm="jars"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        content = self.server.files.get(path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not body:
            return
        if self.server.hold == path:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.server.holding.set()
            self.server.release.wait(DEADLINE_S)
            return
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def repository() -> Iterator[Repository]:
    with Repository() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    path = tmp_path / "jars.lock"
    path.write_text(
        "# three jars\n"
        + "".join(
            f"kafka org.example:{name}:1.0 {len(content)} {hashlib.sha256(content).hexdigest()}\n"
            for name, content in FILES.items()
        )
    )
    return path


@pytest.fixture
def cache(tmp_path: Path, lock_file: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, the small lock file, and the mirror set to the repository."""
    ensure_java()  # from the real cache, should it be the wheel
    monkeypatch.setattr(jars, "LOCK_FILE", lock_file)
    jars._read_lock.cache_clear()
    monkeypatch.setenv("GATEWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GATEWAY_MAVEN_MIRROR", repository.address)
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    if ensure_java().source == "wheel":
        pytest.skip("the wheel's Java lives in the real cache; these tests empty it")
    yield tmp_path / "cache"
    jars._read_lock.cache_clear()


class Events(list["Download"]):
    def __call__(self, event: Download) -> None:
        self.append(event)


def contents(paths: list[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths}


EXPECTED = {f"{name}-1.0.jar": content for name, content in FILES.items()}


def resolve_in_a_process(lock_file: Path) -> subprocess.Popen[str]:
    script = (
        "import sys; from pathlib import Path; from gateway.local.runtime import jars;"
        "jars.LOCK_FILE = Path(sys.argv[1]);"
        "[print(p) for p in jars.resolve('kafka')]"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, str(lock_file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.usefixtures("cache")
class TestFetching:
    def test_a_cache_that_is_linked_to_another_s_jars_has_the_same_class_path(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paths = jars.resolve("kafka")
        other = cache.with_name("other")
        other.mkdir()
        (other / "jars").symlink_to(cache / "jars")
        monkeypatch.setenv("GATEWAY_CACHE", str(other))
        assert jars.resolve("kafka") == paths

    def test_jars_are_fetched_once_and_never_again(self, repository: Repository) -> None:
        events = Events()
        assert jars.pending_bytes("kafka") == 501_000
        paths = jars.resolve("kafka", events)
        assert contents(paths) == EXPECTED
        assert [path.name for path in paths] == list(EXPECTED), "the class path has the lock file's order"
        assert sorted(repository.fetched()) == sorted(EXPECTED)
        asked = {path.rpartition("/")[2] for _, path in repository.requests}
        assert asked == set(EXPECTED), "no POM, no checksum file: the lock file knows it all"
        first, last = events[0], events[-1]
        assert (first.files, first.total_bytes, first.done_bytes, first.finished) == (3, 501_000, 0, False)
        assert (last.done_bytes, last.finished) == (501_000, True)
        done = [event.done_bytes for event in events]
        assert done == sorted(done), "progress went backwards"
        assert jars.pending_bytes("kafka") == 0
        repository.requests.clear()
        again = Events()
        assert jars.resolve("kafka", again) == paths
        assert not repository.requests, "a second call used the network"
        assert not again, "a second call drew a download"

    def test_progress_is_told_while_a_jar_arrives(self, repository: Repository, lock_file: Path) -> None:
        repository.hold = "/org/example/alpha/1.0/alpha-1.0.jar"
        half_seen = threading.Event()

        def look(event: Download) -> None:
            if 0 < event.done_bytes < event.total_bytes and repository.holding.is_set():
                half_seen.set()
                repository.hold = None
                repository.release.set()

        jars.resolve("kafka", look)
        assert half_seen.is_set()

    def test_several_processes_fetch_once(self, repository: Repository, lock_file: Path) -> None:
        processes = [resolve_in_a_process(lock_file) for _ in range(3)]
        answers = [process.communicate(timeout=DEADLINE_S) for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0], answers
        assert len({out for out, _ in answers}) == 1
        assert contents([Path(line) for line in answers[0][0].split()]) == EXPECTED
        assert sorted(repository.fetched()) == sorted(EXPECTED), "a jar was fetched more than once"

    def test_several_threads_fetch_once(self, repository: Repository) -> None:
        results: list[list[Path]] = []
        threads = [threading.Thread(target=lambda: results.append(jars.resolve("kafka", Events()))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert len(results) == 4
        assert all(result == results[0] for result in results)
        assert sorted(repository.fetched()) == sorted(EXPECTED)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
    def test_interrupted_it_goes_on_where_it_stopped(
        self, repository: Repository, lock_file: Path, cache: Path, number: int
    ) -> None:
        """Killed during the last jar: no downloader is left, nothing half is used, the rest is not asked for."""
        repository.hold = "/org/example/gamma-core/1.0/gamma-core-1.0.jar"
        process = resolve_in_a_process(lock_file)
        assert repository.holding.wait(DEADLINE_S)
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("ivy" in " ".join(child.cmdline()) for child in children)
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_S)
        assert psutil.wait_procs(children, timeout=DEADLINE_S)[1] == [], "the downloader outlived its caller"
        assert jars.pending_bytes("kafka") > 0
        repository.hold = None
        repository.release.set()
        before = set(repository.fetched()) - {"gamma-core-1.0.jar"}
        repository.requests.clear()
        assert contents(jars.resolve("kafka", Events())) == EXPECTED
        assert before, "nothing had arrived before the interruption, so this test shows nothing"
        assert not before & set(repository.fetched()), "what had arrived was fetched again"
        assert not [path.name for path in (cache / "jars").iterdir() if "staging" in path.name]

    def test_a_connection_that_breaks_is_tried_again(self, repository: Repository) -> None:
        repository.hold = "/org/example/beta/1.0/beta-1.0.jar"

        def break_it() -> None:
            assert repository.holding.wait(DEADLINE_S)
            repository.hold = None
            repository.release.set()  # the handler returns: the connection ends by half

        threading.Thread(target=break_it, daemon=True).start()
        assert contents(jars.resolve("kafka", Events())) == EXPECTED


@pytest.mark.usefixtures("cache")
class TestTheCacheLater:
    def test_changed_and_removed_jars_are_fetched_anew(self, repository: Repository) -> None:
        changed, removed, _ = paths = jars.resolve("kafka", Events())
        for path in paths:  # as after copying the cache to another machine
            os.utime(path, (1, 1))
        repository.requests.clear()
        assert jars.resolve("kafka", Events()) == paths
        assert not repository.requests
        changed.write_bytes(b"x" * changed.stat().st_size)
        assert contents(jars.resolve("kafka", Events())) == EXPECTED
        removed.unlink()
        assert contents(jars.resolve("kafka", Events())) == EXPECTED

    def test_a_changed_lock_gets_a_directory_of_its_own(self, lock_file: Path, repository: Repository) -> None:
        old = jars.resolve("kafka", Events())
        repository.files["/org/example/beta/1.1/beta-1.1.jar"] = b"new"
        lock_file.write_text(f"kafka org.example:beta:1.1 3 {hashlib.sha256(b'new').hexdigest()}\n")
        jars._read_lock.cache_clear()
        assert contents(jars.resolve("kafka", Events())) == {"beta-1.1.jar": b"new"}
        assert contents(old) == EXPECTED, "a running broker's jars were taken away"


class TestFailures:
    def test_another_content_is_refused_and_not_kept(self, cache: Path, repository: Repository) -> None:
        good = repository.files["/org/example/beta/1.0/beta-1.0.jar"]
        repository.files["/org/example/beta/1.0/beta-1.0.jar"] = b"B" * len(good)
        with pytest.raises(ChecksumError, match=r"1 of 3 jars are not what jars.lock pins: beta-1.0.jar has SHA-256"):
            jars.resolve("kafka", Events())
        assert jars.pending_bytes("kafka") > 0
        repository.files["/org/example/beta/1.0/beta-1.0.jar"] = good
        repository.requests.clear()
        assert contents(jars.resolve("kafka", Events())) == EXPECTED
        assert repository.fetched() == ["beta-1.0.jar"]

    def test_a_page_instead_of_a_jar_is_refused(self, cache: Path, repository: Repository) -> None:
        """A captive portal answers everything with 200."""
        for path in repository.files:
            repository.files[path] = b"<html>log in first</html>"
        with pytest.raises(ChecksumError, match=r"3 of 3 jars.*page of its own"):
            jars.resolve("kafka", Events())

    def test_a_mirror_that_lacks_a_jar(self, cache: Path, repository: Repository) -> None:
        del repository.files["/org/example/beta/1.0/beta-1.0.jar"]
        with pytest.raises(DownloadError, match="lacks some of them: is GATEWAY_MAVEN_MIRROR set") as caught:
            jars.resolve("kafka", Events())
        assert "beta" in str(caught.value)

    def test_no_network(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        monkeypatch.setenv("GATEWAY_MAVEN_MIRROR", f"http://127.0.0.1:{port}")
        begin = time.monotonic()
        with pytest.raises(DownloadError, match=r"cannot be reached: is there a network.*\(log: "):
            jars.resolve("kafka", Events())
        assert time.monotonic() - begin < 30

    def test_a_repository_that_falls_silent(
        self, cache: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Behind a firewall that drops packets, the tool alone would wait for each of the jars in turn."""
        monkeypatch.setattr("gateway.local.runtime.ivy._PATIENCE_SECONDS", 1.0)
        repository.hold = "/org/example/beta/1.0/beta-1.0.jar"
        with pytest.raises(DownloadError, match="cannot be reached: is there a network"):
            jars.resolve("kafka", Events())

    @pytest.mark.parametrize(("mirror", "says"), [
        pytest.param(FAR, "name cannot be resolved: is there a network", id="no name service"),
        pytest.param("user:secret@mirror", "GATEWAY_MAVEN_MIRROR is no address", id="no address"),
    ])  # fmt: skip
    def test_a_mirror_that_cannot_be_found(
        self, mirror: str, says: str, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GATEWAY_MAVEN_MIRROR", mirror)
        with pytest.raises(DownloadError, match=says) as caught:
            jars.resolve("kafka", Events())
        assert "secret" not in str(caught.value)

    def test_no_space(self, cache: Path, monkeypatch: pytest.MonkeyPatch, repository: Repository) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 1_000_000})())
        with pytest.raises(EmbeddedError, match=r"needs 21 MB in .*, but only 1 MB are free.*GATEWAY_CACHE"):
            jars.resolve("kafka", Events())
        assert not repository.requests, "it began all the same"


class TestMirrorsAndProxies:
    @pytest.mark.parametrize(("mirror", "proxy", "wanted", "refusal"), [
        pytest.param("http://me:s3cr%40t@{at}", "", "me:s3cr@t", "", id="mirror, the right password"),
        pytest.param(
            "http://me:s3cret@{at}",
            "",
            "me:another",
            "refuses the user name and password",
            id="mirror, a wrong one",
        ),
        pytest.param("http://{at}", "", "me:s3cret", "wants a user name and password", id="mirror, none"),
        pytest.param(FAR, "http://{at}", None, "", id="proxy without a password"),
        pytest.param(FAR, "http://me:s3cr%40t@{at}", "me:s3cr@t", "", id="proxy, the right password"),
        pytest.param(FAR, "http://{at}", "me:s3cret", "the proxy wants a user name and password", id="proxy, none"),
    ])  # fmt: skip
    def test_logins(
        self, mirror: str, proxy: str, wanted: str | None, refusal: str, cache: Path, repository: Repository,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """No password is left in a file or in the error."""
        at = f"127.0.0.1:{repository.server_address[1]}"
        repository.password = wanted
        monkeypatch.setenv("GATEWAY_MAVEN_MIRROR", mirror.format(at=at))
        if proxy:
            repository.demand = (407, "Proxy-Authenticate", "Proxy-Authorization")
            monkeypatch.setenv("http_proxy", proxy.format(at=at))
        if refusal:
            with pytest.raises(DownloadError, match=refusal) as caught:
                jars.resolve("kafka", Events())
            assert "s3cr" not in str(caught.value)
        else:
            assert contents(jars.resolve("kafka", Events())) == EXPECTED
        kept = [path for path in cache.rglob("*") if path.is_file() and b"s3cr" in path.read_bytes()]
        assert not kept, "the password was left in a file"

    def test_a_mirror_in_a_folder(
        self, cache: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for path, content in repository.files.items():
            target = tmp_path / "mirror" / path.lstrip("/")
            target.parent.mkdir(parents=True)
            target.write_bytes(content)
        monkeypatch.setenv("GATEWAY_MAVEN_MIRROR", (tmp_path / "mirror").as_uri())
        assert contents(jars.resolve("kafka", Events())) == EXPECTED

    def test_a_mirror_behind_a_private_authority(
        self, cache: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch, authority: Authority
    ) -> None:
        """Java trusts it once SSL_CERT_FILE names the authority, and otherwise says what is missing."""
        context = authority.issue("server").server_context()
        repository.socket = context.wrap_socket(repository.socket, server_side=True)
        monkeypatch.setenv("GATEWAY_MAVEN_MIRROR", repository.address.replace("http://127.0.0.1", "https://localhost"))
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
        with pytest.raises(
            DownloadError, match="certificate is not trusted by Java; for a private CA set SSL_CERT_FILE"
        ):
            jars.resolve("kafka", Events())
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
        assert contents(jars.resolve("kafka", Events())) == EXPECTED

    def test_an_exception_from_the_proxy(
        self, cache: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "example.org, 127.0.0.1:80")
        assert contents(jars.resolve("kafka", Events())) == EXPECTED


def test_the_lock_file_of_the_repository_names_whole_bundles() -> None:
    for bundle, main_jar in (
        ("kafka", "kafka_2.13-4.3.1.jar"),
        ("hivemq", "hivemq-community-edition-embedded-2025.5.jar"),
        ("spark", "spark-sql-kafka-0-10_2.13-4.2.0.jar"),
        ("spark", "delta-spark_4.2_2.13-4.4.0.jar"),
    ):
        names = [jar.file_name for jar in jars.locked_jars(bundle)]
        assert main_jar in names
        assert len(set(names)) == len(names)
    assert "://" not in jars.LOCK_FILE.read_text(), "the lock file holds no addresses"
    assert json.dumps([len(jars.locked_jars(bundle)) for bundle in jars.BUNDLES]) == "[46, 56, 14]"
