"""``gateway auth serve`` from outside: it starts, answers, notices changes, and stops as it should."""

import os
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest

from config.extras import how_to_install
from tests.auth_process import auth_serve
from tests.command_line import ROOT, run_gateway
from tests.servers.authority import Authority
from tests.waiting import DEADLINE_S

SECRET = "0123456789abcdef0123456789abcdef"


def test_it_starts_empty_answers_and_stops_by_the_signal(tmp_path: Path) -> None:
    with auth_serve(tmp_path) as served:
        ready = served.wait_for("auth_ready")
        assert ready["chain"] == ["database"]
        assert ready["url"].startswith("http://127.0.0.1:")
        assert served.login("nobody", "x") == {"result": "deny"}
        assert served.get("/healthz").data["alive"] is True
        assert served.get("/readyz").data == {"ready": True, "reasons": []}
        assert served.get("/status").data["chain"] == [{"backend": "database", "up": True}]
        page = served.get("/metrics").body
        assert 'gateway_auth_requests_total{endpoint="authn",result="deny"} 1.0' in page
        assert 'gateway_auth_requests_total{endpoint="authz",result="error"} 0.0' in page
        assert 'gateway_auth_backend_up{backend="database"} 1.0' in page
        assert served.stop() == -signal.SIGTERM
        assert served.wait_for("auth_stopped")["clean"] is True
    with auth_serve(tmp_path) as served:
        served.wait_for("auth_ready", 2)
        made = [line for line in served.lines if line["event"] == "auth_database_made"]
        assert len(made) == 1, "an empty database, as without its disk, is told, and no other"
        assert "is its disk mounted?" in made[0]["consequence"]


def test_a_database_that_goes_away_is_said_and_comes_back(tmp_path: Path) -> None:
    with auth_serve(tmp_path) as served:
        served.add_user("alice", "correct horse")
        served.until(lambda: served.login("alice", "correct horse")["result"] == "allow", "the user is not known")
        folder = tmp_path / "data" / "auth"
        folder.rename(tmp_path / "away")
        served.until(lambda: served.get("/readyz").status == 503, "/readyz does not say that the database is away")
        assert "database" in served.get("/readyz").data["reasons"][0]
        assert served.login("bob", "x") == {"result": "deny"}
        (tmp_path / "away").rename(folder)
        served.until(lambda: served.get("/readyz").status == 200, "the database is back and /readyz does not say so")
        assert served.login("alice", "correct horse")["result"] == "allow"


def test_a_shared_secret_in_a_file_is_taken_over_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    with auth_serve(tmp_path, auth='host = "0.0.0.0"\nshared_secret_file = "secret"') as served:
        body = {"username": "u", "clientid": "c", "password": "p"}

        def status(secret: str) -> int:
            return served.ask("/authn", body, authorization=f"Bearer {secret}").status

        assert (status(SECRET), status("other")) == (200, 401)
        file.write_text(SECRET[::-1])
        served.until(lambda: status(SECRET[::-1]) == 200, "the new secret is not taken over")
        assert status(SECRET) == 401
        file.write_text("short")
        served.wait_for("secret_file_not_read")
        assert (status("short"), status(SECRET[::-1])) == (401, 200), "the start would have refused it"
        assert SECRET not in served.log.read_text()


def test_a_certificate_is_taken_over_when_it_changes(tmp_path: Path, authority: Authority) -> None:
    issued = authority.issue("service")
    auth = f'[auth.tls]\ncertificate_file = "{issued.certificate}"\nkey_file = "{issued.key}"'
    with auth_serve(tmp_path, auth=auth) as served:
        port = served.port()

        def serial() -> str:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
                authority.client_context().wrap_socket(plain, server_hostname="localhost") as tls,
            ):
                certificate = tls.getpeercert()
                assert certificate is not None
                return str(certificate["serialNumber"])

        before = serial()
        authority.issue("service")
        served.until(lambda: serial() != before, "the new certificate is not taken over")
        served.until(
            lambda: re.search(
                r'^gateway_auth_reloads_total{result="success",what="tls"} [1-9]',
                served.get("/metrics").body,
                re.MULTILINE,
            ),
            "the reload is not counted",
        )


def test_a_second_signal_ends_it_without_the_answers_under_way(tmp_path: Path) -> None:
    hashing = '[auth.hashing]\nmemory = "128MiB"\npasses = 100\nthreads = 1'  # longer than any answer may take
    body = b'{"username":"nobody","clientid":"c","password":"p"}'
    with (
        auth_serve(tmp_path, auth=hashing) as served,
        socket.create_connection(("127.0.0.1", served.port()), timeout=60) as client,
    ):
        client.sendall(b"POST /authn HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        served.until(lambda: "gateway_auth_logins_waiting 1.0" in served.get("/metrics").body, "nothing waits")
        # At once, as the answer after four seconds ends a stop that waits for it. Two of a kind may come as one.
        served.process.send_signal(signal.SIGINT)
        assert served.stop() in {-signal.SIGINT, -signal.SIGTERM}
        assert served.wait_for("second_signal_received")
        assert client.recv(100) == b""


@pytest.mark.parametrize(("auth", "status", "says"), [
    ('chain = ["users_file"]', 78, "auth.users_file"),
    ('host = "0.0.0.0"', 78, "auth.shared_secret"),
    ('[auth.tls]\ncertificate_file = "none.pem"', 78, "auth.tls.certificate_file (gateway.toml:7): the file"),
    ('[auth.tls]\ncertificate_file = "gateway.toml"', 78, "auth.tls.certificate_file cannot be used"),
])  # fmt: skip
def test_bad_settings_end_it_with_status_78(tmp_path: Path, auth: str, status: int, says: str) -> None:
    with auth_serve(tmp_path, auth=auth) as served:
        assert served.process.wait(DEADLINE_S) == status
        assert says in served.log.read_text()


def test_a_port_that_is_taken_ends_it_with_status_69(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        (tmp_path / "gateway.toml").write_text(f"[auth]\nport = {number}\noperator_port = 0\n")
        ended = run_gateway("auth", "serve", cwd=tmp_path)
        assert ended.returncode == 69
        assert f"auth.port = {number}" in ended.stderr


def test_missing_packages_are_a_sentence(tmp_path: Path) -> None:
    """As on a machine where the gateway was installed without the extra."""
    hook = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_others(name, *arguments):
    return None if name.partition(".")[0] in {"argon2", "bcrypt", "jwt"} else find(name, *arguments)
PathFinder.find_spec = find_others
"""
    (tmp_path / "sitecustomize.py").write_text(hook)
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    with auth_serve(tmp_path, environment={"PYTHONPATH": path}) as served:
        assert served.process.wait(DEADLINE_S) == 78
        assert "argon2-cffi, bcrypt" in served.log.read_text()
        assert how_to_install("auth") in served.log.read_text()


def test_config_check_looks_at_what_the_service_needs(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text('[auth.tls]\ncertificate_file = "none.pem"\n')
    ended = run_gateway("config", "check", "--for", "auth", cwd=tmp_path)
    assert ended.returncode == 78
    assert "auth.tls.certificate_file" in ended.stderr
    issued = Authority(tmp_path / "pki").issue("service")
    shutil.copy(issued.certificate, tmp_path / "none.pem")
    with (tmp_path / "gateway.toml").open("a") as file:
        file.write(f'key_file = "{issued.key}"\n')
    ended = run_gateway("config", "check", "--for", "auth", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "OK: settings from gateway.toml can be used\n")
