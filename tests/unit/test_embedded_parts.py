"""The embedded brokers' smaller parts: ports, cache, progress, trust store, Ivy's settings, server.properties."""

import fcntl
import socket
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from gateway.local.embedded import kafka_config
from gateway.local.runtime import errors, ivy, ports, trust
from gateway.local.runtime.cache import cache_directory, format_bytes, locked
from gateway.local.runtime.java import Java
from gateway.local.runtime.mirror import Mirror, find_mirror
from gateway.local.runtime.progress import Download, print_progress
from tests.terminal import Terminal
from tests.waiting import DEADLINE_S


class TestPorts:
    def test_reserved_ports_are_free_distinct_and_not_the_kernel_s(self) -> None:
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        one, two = ports.reserve_ports(20), ports.reserve_ports(20)
        try:
            taken = one.ports + two.ports
            assert len(set(taken)) == 40
            assert all(ports.is_free(port) for port in taken)
            if first > 20_000:
                assert not [port for port in taken if first <= port <= last]
        finally:
            one.release()
            two.release()

    def test_a_reserved_port_is_not_given_twice_even_to_another_process(self) -> None:
        reservation = ports.reserve_ports(1)
        port = reservation.ports[0]
        code = f"from gateway.local.runtime.ports import PortReservation as P; raise SystemExit(int(P().take({port})))"
        assert not ports.PortReservation().take(port)
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
        reservation.release()
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 1

    def test_a_port_with_a_server_is_not_free(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert not ports.is_free(port)
            assert not ports.PortReservation().take(port)
        reservation = ports.PortReservation()
        assert reservation.take(port), "a refused port stayed marked"
        reservation.release()
        reservation.release()

    def test_a_port_can_be_bound_again_after_its_server_closed_connections(self) -> None:
        """Connections in TIME_WAIT do not make a port taken: a broker that restarts has them."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            client = socket.create_connection(("127.0.0.1", port))
            accepted, _ = server.accept()
            accepted.close()  # the server's side closes first, so TIME_WAIT is on its port
            client.recv(1)
            client.close()
        assert ports.is_free(port)

    def test_absorbed_ports_end_with_the_absorber(self) -> None:
        one, two = ports.reserve_ports(1), ports.reserve_ports(2)
        moved = list(two.ports)
        one.absorb(two)
        two.release()
        assert one.ports[1:] == moved
        assert not ports.PortReservation().take(moved[0])
        one.release()

    def test_a_machine_without_ports_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ports, "is_free", lambda _port: False)
        monkeypatch.setattr(ports, "_candidates", lambda: range(20_000, 20_010))
        with pytest.raises(errors.PortTakenError, match=r"No 1 free ports are left on 127\.0\.0\.1 in 20000-20009"):
            ports.reserve_ports(1)

    @pytest.mark.parametrize(("text", "inside"), [
        ("32768 60999", range(15_000, 32_768)),
        ("1024 60999", range(61_000, 65_536)),
        ("1024 65535", range(15_000, 65_536)),
    ])  # fmt: skip
    def test_the_kernel_s_range_is_avoided(self, monkeypatch: pytest.MonkeyPatch, text: str, inside: range) -> None:
        monkeypatch.setattr(Path, "read_text", lambda _self: text)
        assert ports._candidates() == inside


class TestCache:
    def test_own_variable_then_xdg_then_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setenv("GATEWAY_CACHE", str(tmp_path / "own"))
        assert cache_directory() == tmp_path / "own"
        monkeypatch.delenv("GATEWAY_CACHE")
        assert cache_directory() == tmp_path / "xdg" / "mqtt-kafka-gateway"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
        assert cache_directory() == tmp_path / "home" / ".cache" / "mqtt-kafka-gateway"

    def test_one_that_cannot_be_made_names_the_way_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("GATEWAY_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(errors.EmbeddedError, match="Set GATEWAY_CACHE to a directory you may write"):
            cache_directory()

    def test_a_lock_that_cannot_be_opened_names_the_way_out(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for path in (tmp_path, tmp_path / "file" / "lock"):
            with pytest.raises(errors.EmbeddedError, match="set GATEWAY_CACHE to another one"), locked(path):
                pass
        with locked(tmp_path / "new" / "lock", mode=0o700):
            assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700

    def test_a_lock_is_exclusive_until_it_is_released(self, tmp_path: Path) -> None:
        with (tmp_path / "lock").open("ab") as other:
            with locked(tmp_path / "lock"), pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_a_killed_holder_frees_its_lock(self, tmp_path: Path) -> None:
        code = (
            "import sys, time; from pathlib import Path; from gateway.local.runtime.cache import locked\n"
            "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout.readline() == "held\n"
            threading.Timer(0.2, holder.kill).start()
            begin = time.monotonic()
            with locked(tmp_path / "lock"):
                assert time.monotonic() - begin < DEADLINE_S

    @pytest.mark.parametrize(
        ("count", "text"), [(0, "1 kB"), (999_999, "1000 kB"), (1_500_000, "2 MB"), (45_025_660, "45 MB")]
    )
    def test_sizes_for_people(self, count: int, text: str) -> None:
        assert format_bytes(count) == text


class TestProgress:
    EVENTS = (
        Download("Kafka", 46, 45_000_000, 0),
        Download("Kafka", 46, 45_000_000, 22_500_000),
        Download("Kafka", 46, 45_000_000, 45_000_000, finished=True),
    )

    def test_in_a_log_file_size_and_end_are_two_lines(self, capsys: pytest.CaptureFixture[str]) -> None:
        for event in self.EVENTS:
            print_progress(event)
        assert capsys.readouterr().err == "Kafka: fetching 46 files, 45 MB, once\nKafka: 45 MB fetched\n"

    def test_on_a_terminal_a_line_is_redrawn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        for event in self.EVENTS:
            print_progress(event)
        _, bar, end = terminal.getvalue().split("\r\x1b[K")
        assert bar == f"Kafka: {'█' * 12}{'░' * 12}  50% of 45 MB"
        assert end == "Kafka: 45 MB fetched\n"


class TestIvy:
    JAVA = Java(Path("/java"), Path("/home"), 17, "PATH")

    @pytest.fixture(autouse=True)
    def no_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = ("http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "GATEWAY_MAVEN_MIRROR")
        for name in names:
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)

    def test_the_settings_name_no_host_of_their_own(self, tmp_path: Path) -> None:
        resolver = ET.fromstring(ivy.settings_xml(tmp_path, mirror=None)).find("resolvers/ibiblio")
        assert "root" not in resolver.attrib

    def test_a_mirror_becomes_root_and_credentials(self, tmp_path: Path) -> None:
        mirror = Mirror("https://host/a&b/", "host", "me", 'p"w<', "Jars")
        root = ET.fromstring(ivy.settings_xml(tmp_path, mirror=mirror))
        resolver, credentials = root.find("resolvers/ibiblio"), root.find("credentials")
        assert resolver.attrib["root"] == "https://host/a&b/"
        assert credentials.attrib == {"realm": "Jars", "host": "host", "username": "me", "passwd": 'p"w<'}

    def test_no_mirror_is_no_mirror(self) -> None:
        assert find_mirror(()) is None

    def test_a_mirror_s_repr_has_no_password(self) -> None:
        assert "secret" not in repr(Mirror("https://host/", "host", "me", "secret", "Jars"))

    def options(self, tmp_path: Path) -> dict[str, str]:
        pairs = (option.removeprefix("-D").partition("=") for option in ivy.java_options(self.JAVA, tmp_path))
        return {name: value for name, _, value in pairs}

    def test_without_a_proxy_no_proxy_is_set(self, tmp_path: Path) -> None:
        assert not [name for name in self.options(tmp_path) if "proxy" in name.lower()]

    @pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY"])
    @pytest.mark.parametrize("value", ["http://proxy:3128", "proxy:3128", "http://proxy:3128/"])
    def test_a_proxy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
        monkeypatch.setenv(variable, value)
        options = self.options(tmp_path)
        assert (options["https.proxyHost"], options["https.proxyPort"]) == ("proxy", "3128")
        assert "http.proxyHost" not in options

    def test_a_proxy_s_password_may_go_through_a_tunnel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("https_proxy", "http://me:p%40ss@proxy:3128")
        options = self.options(tmp_path)
        assert (options["http.proxyUser"], options["http.proxyPassword"]) == ("me", "p@ss")
        assert options["jdk.http.auth.tunneling.disabledSchemes"] == ""

    def test_exceptions_from_the_proxy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("no_proxy", "localhost, .example.org,host:8080")
        expected = "localhost|*.localhost|example.org|*.example.org|host|*.host"
        assert self.options(tmp_path)["http.nonProxyHosts"] == expected
        monkeypatch.setenv("no_proxy", "*")
        assert self.options(tmp_path)["http.nonProxyHosts"] == "*"

    def test_a_proxy_that_is_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("https_proxy", "http://")
        with pytest.raises(errors.DownloadError, match="https_proxy names no host"):
            ivy.java_options(self.JAVA, tmp_path)


class TestTrust:
    WHEEL = Java(Path("/java"), Path("/home"), 25, "wheel")
    SYSTEM = Java(Path("/java"), Path("/home"), 17, "PATH")

    @pytest.fixture
    def bundle(self, monkeypatch: pytest.MonkeyPatch) -> Path:
        system = trust._system_bundle()
        if system is None:
            pytest.skip("this machine has no bundle of certificates")
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        return system

    def test_a_system_java_is_left_to_its_administrator(self, tmp_path: Path, bundle: Path) -> None:
        assert trust.trust_store_options(self.SYSTEM, tmp_path) == []

    def test_the_wheel_gets_the_system_s_certificates(self, tmp_path: Path, bundle: Path) -> None:
        options = trust.trust_store_options(self.WHEEL, tmp_path)
        assert f"-Djavax.net.ssl.trustStore={tmp_path / 'trust.jks'}" in options
        assert (tmp_path / "trust.jks").stat().st_size > 10_000

    @pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
    @pytest.mark.parametrize("java", [WHEEL, SYSTEM])
    def test_a_named_bundle_is_used_with_any_java(
        self, tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch, name: str, java: Java
    ) -> None:
        monkeypatch.setenv(name, str(bundle))
        assert trust.trust_store_options(java, tmp_path)

    def test_an_empty_bundle_is_not_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "empty.pem").write_text("")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "empty.pem"))
        assert trust.trust_store_options(self.SYSTEM, tmp_path) == []


class TestServerProperties:
    def listeners(self, count: int) -> list[kafka_config.Listeners]:
        return [
            kafka_config.Listeners({"PLAINTEXT": 1000 * node, "CONTROLLER": 1000 * node + 1})
            for node in range(1, count + 1)
        ]

    def test_every_node_knows_every_controller(self, tmp_path: Path) -> None:
        properties = kafka_config.node_properties(2, self.listeners(3), tmp_path, {})
        assert properties["node.id"] == "2"
        assert properties["controller.quorum.voters"] == "1@127.0.0.1:1001,2@127.0.0.1:2001,3@127.0.0.1:3001"
        assert properties["listeners"] == "PLAINTEXT://127.0.0.1:2000,CONTROLLER://127.0.0.1:2001"
        assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:2000"

    @pytest.mark.parametrize(
        ("count", "replicas", "in_sync", "idle_ms"),
        [(1, "1", "1", 10_000), (2, "2", "1", 500), (3, "3", "2", 500), (5, "3", "2", 500)],
    )
    def test_replication_and_what_is_written_when_idle_follow_the_number_of_nodes(
        self, tmp_path: Path, count: int, replicas: str, in_sync: str, idle_ms: int
    ) -> None:
        properties = kafka_config.node_properties(1, self.listeners(count), tmp_path, {})
        assert properties["default.replication.factor"] == replicas
        assert properties["offsets.topic.replication.factor"] == replicas
        assert properties["min.insync.replicas"] == in_sync
        assert int(properties["metadata.max.idle.interval.ms"]) == idle_ms, "a controller that is alone seldom writes"

    def test_settings_win(self, tmp_path: Path) -> None:
        properties = kafka_config.node_properties(
            1, self.listeners(1), tmp_path, {"auto.create.topics.enable": "true", "new.one": "x"}
        )
        assert properties["auto.create.topics.enable"] == "true"
        assert properties["new.one"] == "x"

    @pytest.mark.parametrize(("properties", "text"), [
        ({"a.b": "c d"}, "a.b=c d\n"),
        ({"a": " x"}, "a=\\ x\n"),
        ({"a": "#x"}, "a=\\#x\n"),
        ({"a": "b\\c\nd\te"}, "a=b\\\\c\\nd\\te\n"),
        ({"k:=x y": "é€😀"}, "k\\:\\=x\\ y=\\u00e9\\u20ac\\ud83d\\ude00\n"),
    ])  # fmt: skip
    def test_the_text_is_what_java_reads(self, properties: dict[str, str], text: str) -> None:
        assert kafka_config.properties_text(properties) == text
