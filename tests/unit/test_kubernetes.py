"""deploy/kubernetes: the manifests against Kubernetes' own schemas and against what the gateway is, and the hook that
tells a restart from the last stop."""

import http.server
import json
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from config.loading.load import load
from tests.scripts import load_script
from tests.servers.authority import Authority

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
TEXT = (FOLDER / "gateway.yaml").read_text()
MANIFESTS = {one["kind"]: one for one in yaml.safe_load_all(TEXT)}
SET = MANIFESTS["StatefulSet"]["spec"]
POD = SET["template"]["spec"]
[CONTAINER] = POD["containers"]
MOUNTS = {one["mountPath"]: one for one in CONTAINER["volumeMounts"]}

# The oldest version with everything that is used (ReadWriteOncePod is stable from 1.29), and the newest known.
VERSIONS = ["1.29", kubernetes_validate.latest_version()]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", MANIFESTS)
def test_kubernetes_takes_it(kind: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[kind], version, strict=True)


def test_the_schemas_find_a_mistake() -> None:
    wrong = json.loads(json.dumps(MANIFESTS["StatefulSet"]))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    """The settings of a pod, as the gateway itself reads them."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    text = MANIFESTS["ConfigMap"]["data"]["gateway.toml"]
    for name in re.findall(r"/run/gateway/([a-z-]+)", text):
        (secrets / name).write_text("of-32-random-bytes-and-in-base64")
    file = tmp_path / "gateway.toml"
    file.write_text(text.replace("/run/gateway", str(secrets)))
    loaded = load(file, environ={"GATEWAY_INSTANCE": "gateway-0"})
    assert loaded.settings.instance == "gateway-0"
    return loaded.settings


def test_a_pod_has_time_to_drain(settings: Any) -> None:
    """What retires it waits shutdown_timeout and five seconds more; then SIGTERM comes."""
    assert POD["terminationGracePeriodSeconds"] >= settings.shutdown_timeout.total_seconds() + 10


def test_the_first_pod_makes_the_topics(settings: Any) -> None:
    """Else it ends with status 69 again and again, until somebody has made them."""
    assert settings.kafka.topics.create


def test_the_spool_fits_the_volume(settings: Any) -> None:
    [claim] = SET["volumeClaimTemplates"]
    size = claim["spec"]["resources"]["requests"]["storage"]
    assert size.endswith("Gi")
    assert settings.workers == int(CONTAINER["resources"]["limits"]["cpu"])
    assert settings.spool.disk_bytes(settings.workers) <= 0.9 * int(size[:-2]) * 2**30, "each worker has its own"
    assert MOUNTS["/var/lib/gateway"]["name"] == claim["metadata"]["name"]


def test_probes_ask_what_is_answered_without_a_token(settings: Any) -> None:
    assert {CONTAINER[kind]["httpGet"]["path"] for kind in ("livenessProbe", "startupProbe")} == {"/healthz"}
    assert CONTAINER["readinessProbe"]["httpGet"]["path"] == "/readyz"
    [port] = CONTAINER["ports"]
    assert port["containerPort"] == settings.http.port == MANIFESTS["Service"]["spec"]["ports"][0]["port"]
    assert settings.http.host == "0.0.0.0"
    assert settings.http.token is not None


def test_every_secret_that_is_read_is_mounted() -> None:
    """And none is in the manifests: applied again, they would replace the real ones."""
    named = set(re.findall(r"/run/gateway/([a-z-]+)", MANIFESTS["ConfigMap"]["data"]["gateway.toml"]))
    assert named == set(re.findall(r"--from-file=([a-z-]+)", TEXT)) == {"mqtt-password", "http-token"}
    assert MOUNTS["/run/gateway"]["name"] == "secrets"
    assert "Secret" not in MANIFESTS


def test_no_volume_is_mounted_into_another() -> None:
    """A mount point is made in what lies below, and that is read-only here."""
    for path in MOUNTS:
        assert not [other for other in MOUNTS if path != other and path.startswith(f"{other}/")]


def test_names_fit_together() -> None:
    name = MANIFESTS["StatefulSet"]["metadata"]["name"]
    assert MANIFESTS["Role"]["rules"][0]["resourceNames"] == [name], "the hook asks for this StatefulSet"
    assert SET["serviceName"] == MANIFESTS["Service"]["metadata"]["name"]
    labels = SET["template"]["metadata"]["labels"]
    for selector in (
        SET["selector"]["matchLabels"],
        MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["Service"]["spec"]["selector"],
    ):
        assert selector.items() <= labels.items()
    volumes = {one["name"] for one in POD["volumes"]} | {SET["volumeClaimTemplates"][0]["metadata"]["name"]}
    assert {one["name"] for one in MOUNTS.values()} == volumes


def test_a_pod_has_no_rights_it_does_not_need() -> None:
    assert POD["securityContext"]["runAsNonRoot"]
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    assert CONTAINER["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert not CONTAINER["securityContext"]["allowPrivilegeEscalation"]
    assert MANIFESTS["Role"]["rules"] == [
        {"apiGroups": ["apps"], "resources": ["statefulsets/scale"], "resourceNames": ["gateway"], "verbs": ["get"]}
    ]


def test_the_hook_is_in_the_image() -> None:
    command = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["python3", "-I", "/opt/gateway/pre_stop.py"]
    [line] = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if "pre_stop.py" in line]
    assert line.split()[0] == "COPY"
    assert line.split()[-1] == "/opt/gateway/"


class Kubernetes(http.server.BaseHTTPRequestHandler):
    """Answers as the API server does: the scale of one StatefulSet, to who shows the token."""

    replicas: int | None = 2
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        known = self.path == "/apis/apps/v1/namespaces/iot/statefulsets/gateway/scale"
        allowed = self.headers["Authorization"] == "Bearer its-token"
        # Go leaves out what is 0.
        spec = {} if self.replicas == 0 else {"replicas": self.replicas}
        body = json.dumps({"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": spec}).encode()
        self.send_response(403 if not allowed else 404 if not known or self.replicas is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
        """Quiet."""


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs the hook in the pod of a number, while there are to be so many; gives status, log and gateway's calls."""
    module = load_script(FOLDER / "pre_stop.py")
    module.TIMEOUT_S = 60.0  # the server is a thread of a busy process

    authority = Authority(tmp_path / "account")
    (tmp_path / "account/ca.crt").write_bytes(authority.ca_file.read_bytes())
    (tmp_path / "account/token").write_text("its-token\n")
    calls = tmp_path / "calls"
    gateway = tmp_path / "bin/gateway"
    gateway.parent.mkdir()
    gateway.write_text(f'#!/bin/sh\necho "$@" >>{calls}\necho retired\nexit 75\n')
    gateway.chmod(gateway.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{gateway.parent}:/usr/bin:/bin")

    handler = type("Handler", (Kubernetes,), {"asked": []})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = authority.issue("kubernetes").server_context().wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        environ = {"POD_NAMESPACE": "iot", "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
        environ["KUBERNETES_SERVICE_PORT"] = str(server.server_address[1])

        def run(replicas: int | None, ordinal: int, **changed: str) -> tuple[int, list[dict[str, Any]], list[str]]:
            handler.replicas = replicas  # type: ignore[attr-defined]
            log = tmp_path / "log"
            log.touch()
            status = module.main(
                {**environ, "GATEWAY_INSTANCE": f"gateway-{ordinal}", **changed}, authority.ca_file.parent, log
            )
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            return status, lines, calls.read_text().splitlines() if calls.exists() else []

        yield run
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("replicas", "ordinal"), [(2, 2), (1, 1), (0, 0), (9, 10)])
def test_a_pod_that_is_one_too_many_retires(hook: Any, replicas: int, ordinal: int) -> None:
    status, log, calls = hook(replicas, ordinal)
    assert status == 75, "what gateway retire ended with"
    assert calls == ["retire"]
    assert [line["event"] for line in log] == ["pod_retires", "pod_retired"]
    assert log[-1]["said"] == "retired"


@pytest.mark.parametrize(("replicas", "changed", "event"), [
    (2, {}, "pod_comes_back"),
    (None, {}, "scale_unknown"),  # there is no such StatefulSet any more
    (1, {"POD_NAMESPACE": "other"}, "scale_unknown"),
    (1, {"KUBERNETES_SERVICE_PORT": "1"}, "scale_unknown"),
    (1, {"KUBERNETES_SERVICE_HOST": "localhost.invalid"}, "scale_unknown"),
    (1, {"GATEWAY_INSTANCE": "named-by-hand"}, "scale_unknown"),
])  # fmt: skip
def test_a_pod_that_comes_back_or_cannot_learn_whether_it_does_keeps_its_sessions(
    hook: Any, replicas: int | None, changed: dict[str, str], event: str
) -> None:
    status, log, calls = hook(replicas, 1, **changed)
    assert (status, calls) == (0, [])
    assert [line["event"] for line in log] == [event]
    assert event == "pod_comes_back" or log[0]["error"]
