"""The Spark job reads a Kafka that verifies tokens: fetched by the Java client itself, or out of a file."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.brokers.fixtures import MakeTopic
from tests.brokers.secured import SecuredKafka, TokenCheck
from tests.integration.job_process import QUICK
from tests.integration.streaming_support import base_ms, messages, produce, rows_in, write_config
from tests.servers.authority import Authority
from tests.servers.identity_provider import IdentityProvider

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MARK = "kanarie"
SECRET = f'{MARK}"quo\\ted'
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def provider(authority: Authority) -> Iterator[IdentityProvider]:
    """Over TLS, as the Java client insists on checking it."""
    with IdentityProvider(certificate=authority.issue("localhost")) as provider:
        provider.clients["gateway"] = SECRET
        provider.claims = {"sub": "spark", "aud": "kafka"}
        yield provider


@pytest.fixture(scope="module")
def keys(provider: IdentityProvider) -> Iterator[IdentityProvider]:
    """The same keys without TLS, for the broker, which knows nothing of our authority."""
    with IdentityProvider() as keys:
        keys.keys = provider.keys
        yield keys


@pytest.fixture(scope="module")
def cluster(keys: IdentityProvider) -> Iterator[SecuredKafka]:
    with SecuredKafka(sasl=True, tokens=TokenCheck(keys.jwks_url, "kafka")) as cluster:
        yield cluster


@pytest.mark.parametrize("source", ["oauth", "file"])
async def test_the_job_reads_with_a_token(
    source: str,
    cluster: SecuredKafka,
    provider: IdentityProvider,
    authority: Authority,
    make_topic: MakeTopic,
    tmp_path: Path,
) -> None:
    topic = await make_topic(cluster=cluster)
    produce(cluster.bootstrap, topic, messages(range(20), base_ms(), 1))
    config = write_config(tmp_path, cluster.sasl_bootstrap, topic, available_now=True)
    client = {"token_url": provider.token_url, "client_id": "gateway", "client_secret": SECRET, "scope": "read"}
    lines = ["[kafka.sasl]", 'mechanism = "OAUTHBEARER"']
    if source == "oauth":
        lines += ["[kafka.sasl.token.oauth]", *(f"{name} = {json.dumps(value)}" for name, value in client.items())]
        lines += [f'tls.ca_file = "{authority.ca_file}"']
    else:
        (tmp_path / "token").write_text(provider.sign(provider.claims))
        lines += ["[kafka.sasl.token]", f'file = "{tmp_path / "token"}"']
    text = config.read_text().replace("[kafka]\n", '[kafka]\nsecurity = "SASL_PLAINTEXT"\n')
    config.write_text(text + "\n".join(lines) + "\n")
    asked = provider.counts["token"]
    status, shown = await asyncio.to_thread(_run, config, tmp_path / "job.log")
    said = (tmp_path / "job.log").read_text()
    assert status == 0, said
    assert len(rows_in(tmp_path / "lake" / "bronze")) == 20
    assert MARK not in said
    assert any("java" in line for line in shown), "the JVM was not looked at"
    assert not any(MARK in line for line in shown)
    assert (provider.counts["token"] > asked) is (source == "oauth")


def _run(config: Path, log: Path) -> tuple[int, list[str]]:
    """The job's exit status, and the command lines of it and its children."""
    command = [sys.executable, "-m", "gateway.cli.main", "stream", "bronze", "--config", str(config), *QUICK]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("wb") as said:
        job = subprocess.Popen(command, stdout=said, stderr=said, cwd=config.parent, env=environment)
    shown: set[str] = set()
    try:
        process, end = psutil.Process(job.pid), time.monotonic() + PATIENCE_S
        while job.poll() is None:
            assert time.monotonic() < end, f"the job did not end within {PATIENCE_S:g} s"
            with contextlib.suppress(psutil.NoSuchProcess):
                shown |= {" ".join(one.cmdline()) for one in [process, *process.children(recursive=True)]}
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(0.2)
        return job.returncode, sorted(shown)
    finally:
        job.kill()  # its JVM ends with it
