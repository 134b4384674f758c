"""A lock-out from outside: what the device, the operator and `gateway auth explain` see of it, and how it ends."""

import json
from pathlib import Path
from typing import Any

from auth.passwords import hash_argon2id
from tests.auth_process import WEAK, auth_serve
from tests.command_line import run_gateway


def explain(folder: Path, *arguments: str) -> dict[str, Any]:
    """`gateway auth explain --json`, with settings that name the service's port."""
    done = run_gateway("auth", "explain", "--json", "--config", "explain.toml", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_guessing_locks_out_explain_says_so_and_a_new_password_ends_it(tmp_path: Path) -> None:
    with auth_serve(tmp_path, auth='[auth.protection]\nfailures = 3\nlockout = "10m"\n') as served:
        served.add_user("ada", "right")
        served.until(lambda: served.login("ada", "right")["result"] == "allow", "a new user is not known")
        for number in range(4):
            assert served.login("ada", f"guess {number}", peerhost="192.0.2.1") == {"result": "deny"}
        line = served.wait_for("auth_locked_out")
        assert (line["kind"], line["name"], line["seconds"]) == ("user", "ada", 600)
        assert served.login("ada", "right", peerhost="192.0.2.1") == {"result": "deny"}
        assert served.login("ada", "right")["result"] == "allow", "who is in the cache is locked out by a guesser"

        served.until(lambda: served.get("/status").data["locked_out"] == 2, "user name and client id are not counted")
        known = served.get("/status").data["lock_outs"]
        assert {(one["kind"], one["name"], one["address"]) for one in known} == {("user", "ada", ""), ("user", "c", "")}
        (tmp_path / "explain.toml").write_text(f"[auth]\noperator_port = {served.port('operator_url')}\n")
        told = explain(tmp_path, "--username", "ada", "--clientid", "c")
        assert told["lock_outs_known"] is True
        assert told["lock_out"]["kind"] == "user"
        assert 0 < told["lock_out"]["seconds"] <= 600
        assert told["login"]["allowed"] is False
        assert explain(tmp_path, "--username", "bob", "--clientid", "d")["lock_out"] is None

        with served.edit() as editor:
            editor.users.change("username", "ada", password=hash_argon2id("another", WEAK))
        served.until(
            lambda: served.login("ada", "another", peerhost="192.0.2.1")["result"] == "allow",
            "the password was given anew and the lock-out holds on",
        )
        assert "guess" not in served.log.read_text()
    assert explain(tmp_path, "--username", "ada")["lock_outs_known"] is False


def test_the_operators_port_asks_for_the_token_and_explain_shows_it(tmp_path: Path) -> None:
    """It tells names and addresses, and is guarded as the gateway's own port."""
    token = '[http]\ntoken = "of-the-test-0123456789"\n'
    with auth_serve(tmp_path, settings=token) as served:
        served.wait_for("auth_ready")
        assert [served.get(path).status for path in ("/healthz", "/readyz")] == [200, 200]
        assert [served.get(path).status for path in ("/status", "/metrics")] == [401, 401]
        assert "http.token" in served.get("/status").body
        assert served.get("/").status == 404
        port = f"[auth]\noperator_port = {served.port('operator_url')}\n"
        (tmp_path / "explain.toml").write_text(port)
        assert explain(tmp_path, "--username", "ada")["lock_outs_known"] is False
        (tmp_path / "explain.toml").write_text(token + port)
        assert explain(tmp_path, "--username", "ada")["lock_outs_known"] is True
