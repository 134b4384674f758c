"""deploy/kubernetes/spark.yaml: against Kubernetes' own schemas, the settings, and what Spark's executor asks for."""

import re
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pyspark
import pytest
import yaml

from config.loading.load import load
from streaming.options import JOBS, overrides, process_arguments
from tests.scripts import load_script

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
MANIFESTS = {one["kind"]: one for one in yaml.safe_load_all((FOLDER / "spark.yaml").read_text())}
SETTINGS = MANIFESTS["ConfigMap"]["data"]
EXECUTOR = yaml.safe_load(SETTINGS["executor.yaml"])
DRIVER = MANIFESTS["StatefulSet"]["spec"]["template"]
VERSIONS = ["1.29", kubernetes_validate.latest_version()]
HOME = Path(pyspark.__file__).parent


def container(pod: dict[str, Any]) -> dict[str, Any]:
    [found] = pod["spec"]["containers"]
    return dict(found)


def properties() -> dict[str, str]:
    _, job, *words = container(DRIVER)["args"]
    return dict(process_arguments(job, words).conf)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", [*MANIFESTS, "executor"])
def test_kubernetes_takes_it(kind: str, version: str) -> None:
    kubernetes_validate.validate(EXECUTOR if kind == "executor" else MANIFESTS[kind], version, strict=True)


def test_the_gateway_takes_the_drivers_words_and_settings(tmp_path: Path) -> None:
    stream_word, job, *words = container(DRIVER)["args"]
    assert (stream_word, job in JOBS) == ("stream", True)
    assert overrides(process_arguments(job, words))["stream.master"] == "k8s://https://kubernetes.default.svc"
    file = tmp_path / "gateway.toml"
    file.write_text(SETTINGS["gateway.toml"])
    stream = load(file, environ={}).settings.stream
    for pod in (DRIVER, EXECUTOR):
        [lake] = [one for one in container(pod)["volumeMounts"] if one["name"] == "lake"]
        for folder in (stream.checkpoint, stream.lake.path):
            assert folder.is_relative_to(lake["mountPath"]), f"{folder} would be another one in each pod"
    assert stream.shuffle_partitions == int(properties()["spark.executor.instances"]) * 2


def test_executors_find_the_driver() -> None:
    name = MANIFESTS["StatefulSet"]["metadata"]["name"]
    service = MANIFESTS["Service"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= DRIVER["metadata"]["labels"].items()
    assert MANIFESTS["StatefulSet"]["spec"]["serviceName"] == service["metadata"]["name"] == name
    told = properties()
    assert told["spark.driver.host"] == f"$(POD_NAME).{name}.$(POD_NAMESPACE).svc"
    ports = {one["containerPort"] for one in container(DRIVER)["ports"]}
    assert ports == {int(told["spark.driver.port"]), int(told["spark.driver.blockManager.port"])}
    known = {one["name"] for one in container(DRIVER)["env"]}
    assert set(re.findall(r"\$\((\w+)\)", str(told))) <= known


def test_executors_are_the_drivers_image_and_no_service_of_it() -> None:
    """One Python in both, or functions made in the one cannot be read in the other."""
    image = properties()["spark.kubernetes.container.image"]
    assert container(DRIVER)["image"] == container(EXECUTOR)["image"] == image
    selector = MANIFESTS["Service"]["spec"]["selector"]
    assert not selector.items() <= EXECUTOR["metadata"]["labels"].items()


def test_memory_fits_the_limit() -> None:
    """Driver: its 2 GB of heap. Executor: RocksDB's 512 MB and two Python workers are outside of the heap."""
    assert container(DRIVER)["resources"]["limits"]["memory"] == "4Gi"
    told = properties()
    assert int(told["spark.executor.memoryOverhead"].removesuffix("m")) >= 512 + 2 * 400


def test_a_pod_has_no_rights_it_does_not_need() -> None:
    for pod in (DRIVER, EXECUTOR):
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        ours = container(pod)["securityContext"]
        assert ours["readOnlyRootFilesystem"]
        assert ours["capabilities"]["drop"] == ["ALL"]
        assert not ours["allowPrivilegeEscalation"]
    assert EXECUTOR["spec"]["automountServiceAccountToken"] is False, "only the driver asks Kubernetes for anything"


# --- the executor's command ---


@pytest.fixture(scope="module")
def executor() -> ModuleType:
    return load_script(FOLDER / "spark_executor.py")


TOLD = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@spark-0.spark.default.svc:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1536m",
    "SPARK_APPLICATION_ID": "spark-application-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.3",
    "SPARK_EXECUTOR_POD_NAME": "spark-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_2": "--add-opens=java.base/java.nio=ALL-UNNAMED",
}


def test_an_executor_is_what_the_driver_asked_for(executor: ModuleType) -> None:
    words = executor.command({**TOLD, "JAVA_HOME": "/usr/lib/jvm/java"}, HOME)
    assert words[0] == "/usr/lib/jvm/java/bin/java"
    assert words[1:5] == ["--add-opens=java.base/java.nio=ALL-UNNAMED", "-Dlast=1", "-Xms1536m", "-Xmx1536m"]
    options = dict(zip(words[-14::2], words[-13::2], strict=True))
    assert options["--driver-url"] == TOLD["SPARK_DRIVER_URL"]
    assert options["--podName"] == "spark-exec-1"
    assert executor.command(TOLD, HOME)[0] == "java"


def test_spark_knows_the_class_and_its_options(executor: ModuleType) -> None:
    [jar] = (HOME / "jars").glob("spark-kubernetes_*.jar")
    name = f"{executor._MAIN.replace('.', '/')}$.class"
    code = zipfile.ZipFile(jar).read(name)
    for option in executor._TOLD:
        assert option.encode() in code, f"{name} does not know {option}"


def test_an_executor_nobody_asked_for_says_so(
    executor: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPARK_EXECUTOR_MEMORY", raising=False)
    assert executor.main() == 64
    assert "SPARK_EXECUTOR_MEMORY" in capsys.readouterr().err


def test_the_command_is_in_the_image() -> None:
    assert container(EXECUTOR)["command"] == ["python3", "-I", "/opt/gateway/spark_executor.py"]
    assert "COPY deploy/kubernetes/spark_executor.py /opt/gateway/\n" in (ROOT / "Dockerfile").read_text()
