"""`gateway verify` prints its account and nothing of what happens meanwhile."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from gateway.cli.main import main


def test_no_log_line_is_among_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logs that nobody has configured go to the output, with everything down to debug."""

    async def looked(*_arguments: Any) -> tuple[Any, None]:
        structlog.get_logger("emqx").debug("emqx_asked", status=200)
        return SimpleNamespace(exit_status=0), None

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_INSTANCE", "plant")
    monkeypatch.setattr("gateway.cli.records.verify._verify", looked)
    monkeypatch.setattr("gateway.cli.records.verify_text.as_text", lambda *_arguments: "the account\n")
    assert main(["verify"]) == 0
    assert capsys.readouterr() == ("the account\n", "")


def test_nor_where_a_data_directory_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GATEWAY_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("GATEWAY_KAFKA__BOOTSTRAP_SERVERS", '["127.0.0.1:1"]')
    assert main(["identity", "adopt"]) == 78
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"gateway: data_dir {tmp_path} belongs to no instance: ")
