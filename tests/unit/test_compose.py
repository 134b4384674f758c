"""docker-compose.yml and what it mounts, checked without an engine: against a compose implementation, against each
other, and against the settings the gateway really reads."""

import base64
import fnmatch
import http.server
import os
import re
import shutil
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml

from auth.store.first_start import GATEWAY_USER, FirstStart, emqx_files
from config.loading.load import load, require_runnable
from config.loading.sources import RESERVED
from config.schema import environment_names
from config.settings import Settings
from tests.brokers.emqx_conf import AuthConf, HttpConf, flatten, read_auth_conf, read_hocon
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BROKERS = [name for name in SERVICES if name.startswith("kafka-")]
CLUSTER = ["spark-master", "spark-worker", "spark-bronze"]
OURS = ["gateway", "spark", "auth", "auth-init", *CLUSTER]
WITH_SETTINGS = ["gateway", "spark", "auth", "spark-bronze"]
# Mounted whole: files that may be missing would, by themselves, become folders, and several belong together.
FOLDERS = {"./deploy/secrets", "./deploy/prometheus/rules", "./deploy/grafana/dashboards"}
SECRETS = [name for name in COMPOSE["volumes"] if name.startswith("auth-")]


def environment(service: str) -> dict[str, str]:
    return {name: str(value) for name, value in SERVICES[service].get("environment", {}).items()}


def published(service: str) -> list[tuple[str, int, int]]:
    """The ports of a service as (address, port on the host, port in the container)."""
    found = []
    for text in SERVICES[service].get("ports", []):
        address, host, container = text.split(":")
        found.append((address, int(host), int(container)))
    return found


def mounts(service: str) -> list[tuple[str, str, str]]:
    """The volumes of a service as (source, target, mode)."""
    found = []
    for text in SERVICES[service].get("volumes", []):
        source, target, *mode = text.split(":")
        found.append((source, target, mode[0] if mode else "rw"))
    return found


def image_environment() -> dict[str, str]:
    """What the Dockerfile's ENV lines set."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    pairs = [pair for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE) for pair in line.split()]
    return dict(pair.split("=", 1) for pair in pairs)


def settings(service: str = "gateway") -> Settings:
    """The settings as the container reads them: the image's environment, compose's, and the mounted file."""
    ours = {**image_environment(), **environment(service)}
    variables = {name: value for name, value in ours.items() if name.startswith("GATEWAY_")}
    mounted = {target: source for source, target, _ in mounts(service)}
    with tempfile.NamedTemporaryFile("w", prefix="secret-") as secret:
        secret.write("of-the-test-" * 4)
        secret.flush()
        # The files of secrets are made on the first start.
        made = {name: secret.name if name.endswith("_FILE") else value for name, value in variables.items()}
        loaded = load(ROOT / mounted[variables["GATEWAY_CONFIG"]], environ=made)
    require_runnable(loaded)
    # All are about secrets that travel readable: they cross the compose network alone, on this machine.
    expected = {"gateway": ["mqtt.password", "emqx.api_secret", "http.token"], "auth": ["auth.host", "http.token"]}
    assert {warning.split(" ")[0] for warning in loaded.warnings} == set(expected.get(service, []))
    return loaded.settings


# --- compose itself --------------------------------------------------------------------------------------------------


def test_a_compose_implementation_accepts_the_file() -> None:
    """Debian's docker-compose 1.29 knows the older schema; what it takes, newer ones do."""
    command = shutil.which("docker-compose")
    if command is None:
        message = "docker-compose is not installed (Debian: apt-get install docker-compose)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    ran = subprocess.run([command, "config"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "", "docker-compose warns"
    resolved = yaml.safe_load(ran.stdout)
    assert resolved["services"].keys() == SERVICES.keys()


def test_every_mounted_file_is_there_and_read_only() -> None:
    named = set(COMPOSE["volumes"])
    for service in SERVICES:
        for source, target, mode in mounts(service):
            if source in named:
                continue
            there = (ROOT / source).is_file() or source in FOLDERS
            assert there, f"{service} mounts {source}, which is not there"
            assert mode == "ro", f"{service} may write into {source} ({target})"


def test_every_named_volume_is_used() -> None:
    used = {source for service in SERVICES for source, _, _ in mounts(service)}
    assert set(COMPOSE["volumes"]) <= used


def test_everything_in_deploy_is_mounted_or_copied() -> None:
    used = {source.removeprefix("./") for service in SERVICES for source, _, _ in mounts(service)}
    used |= {"deploy/healthcheck.py"}
    folders = [folder.removeprefix("./") for folder in FOLDERS]
    # What checks or makes the others.
    tools = [
        "deploy/prometheus/tests/",
        "deploy/prometheus/alertmanager.yml",
        "deploy/grafana/dashboard.py",
        "deploy/grafana/panels.py",
    ]
    left = {
        path.relative_to(ROOT).as_posix()
        for path in DEPLOY.rglob("*")
        if path.is_file() and not {"wheelhouse", "secrets", "kubernetes", "__pycache__"} & set(path.parts)
    }
    assert {path for path in left if not path.startswith((*folders, *tools))} <= used


def test_ports_are_published_on_loopback_alone() -> None:
    seen: dict[int, str] = {}
    for service in SERVICES:
        for address, host, _ in published(service):
            assert address == "127.0.0.1", f"{service} publishes {host} on {address}"
            assert host not in seen, f"{service} and {seen[host]} both publish {host}"
            seen[host] = service
    assert {1883, 9464, 18083, 9090, 3000} <= seen.keys()


def test_the_service_itself_is_not_published() -> None:
    ours = settings("auth").auth
    assert [container for _, _, container in published("auth")] == [ours.operator_port]
    assert published("auth-init") == []


def test_images_have_a_fixed_version() -> None:
    for name, service in SERVICES.items():
        image = service["image"]
        if name not in OURS:
            assert re.search(r":v?\d+\.\d+\.\d+$", image), f"{name} runs {image}"


@pytest.mark.parametrize("service", OURS)
def test_our_containers_have_no_rights_they_do_not_need(service: str) -> None:
    ours = SERVICES[service]
    assert ours["read_only"] is True
    assert ours["cap_drop"] == ["ALL"]
    assert ours["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in ours, "the image's own user is the one without rights"
    assert not ours.get("privileged")


def test_services_wait_for_what_exists() -> None:
    for name, service in SERVICES.items():
        for other in service.get("depends_on", []):
            assert other in SERVICES, f"{name} waits for {other}"
            if not isinstance(service["depends_on"], dict):
                continue
            if service["depends_on"][other]["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], f"{name} waits for {other} to be healthy, which it never says"
            elif service["depends_on"][other]["condition"] == "service_completed_successfully":
                assert SERVICES[other]["restart"] == "no", (
                    f"{name} waits for the end of {other}, which is started again"
                )


# --- the gateway's settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", OURS)
def test_every_environment_name_is_a_setting(service: str) -> None:
    ours = {**image_environment(), **environment(service)}
    unknown = {name for name in ours if name.startswith("GATEWAY_")} - set(environment_names(Settings)) - set(RESERVED)
    assert not unknown


@pytest.mark.parametrize("service", WITH_SETTINGS)
def test_the_mounted_settings_load(service: str) -> None:
    names = [route.name for route in settings(service).routes]
    assert names == ["telemetry", "status"]


def test_the_gateway_connects_to_what_compose_starts() -> None:
    ours = settings()
    assert ours.mqtt.addresses == ("mqtt://emqx:1883",)
    assert 1883 in [container for _, _, container in published("emqx")]
    advertised = [listeners(broker, "KAFKA_ADVERTISED_LISTENERS")["INTERNAL"] for broker in BROKERS]
    assert list(ours.kafka.bootstrap_servers) == advertised


def test_topics_survive_a_broker_and_are_acknowledged_by_two() -> None:
    topics = settings().kafka.topics
    assert topics.create
    declared = {topic.name: topic for topic in topics.declare}
    for route in settings().routes:
        assert route.topic in declared, f"route {route.name} writes to {route.topic}, which is not declared"
    assert declared[settings().ledger.topic].retention == declared["devices.telemetry"].retention
    for copies in [topics.replication, *(topic.replication for topic in declared.values())]:
        assert copies == len(BROKERS)
        assert int(environment(BROKERS[0])["KAFKA_MIN_INSYNC_REPLICAS"]) == copies - 1


def test_the_http_port_is_published_scraped_and_checked() -> None:
    http_settings = settings().http
    assert http_settings.host == "0.0.0.0", "Prometheus is another container"
    assert [container for _, _, container in published("gateway")] == [http_settings.port]
    assert f"EXPOSE {http_settings.port}\n" in (ROOT / "Dockerfile").read_text()
    assert f"gateway:{http_settings.port}" in targets("gateway")
    check = SERVICES["gateway"]["healthcheck"]["test"]
    assert check[-2:] == ["/opt/gateway/healthcheck.py", "/readyz"]
    service = settings("auth").auth
    assert service.operator_host == "0.0.0.0"
    assert f"auth:{service.operator_port}" in targets("auth")
    assert f"EXPOSE {service.port} {service.operator_port}\n" in (ROOT / "Dockerfile").read_text()
    assert SERVICES["auth"]["healthcheck"]["test"][-3:] == [*check[-2:], "auth"]


def test_a_stop_has_time_to_drain() -> None:
    for service in ("gateway", "spark"):
        seconds = int(SERVICES[service]["stop_grace_period"].removesuffix("s"))
        assert seconds > settings().shutdown_timeout.total_seconds()


def test_what_is_written_is_on_a_volume() -> None:
    ours, stream = settings(), settings("spark").stream
    assert str(ours.data_dir) in [target for source, target, _ in mounts("gateway") if source == "gateway"]
    volume = next(target for source, target, _ in mounts("spark") if source == "spark")
    for folder in (stream.checkpoint, stream.lake.path):
        assert folder.is_relative_to(volume), f"Spark writes to {folder}, which is in no volume"


def test_spark_reads_a_topic_the_gateway_writes() -> None:
    ours = settings("spark")
    assert set(ours.stream.topics) <= {route.topic for route in ours.routes}


def test_the_cluster_is_started_only_when_it_is_asked_for_and_is_one() -> None:
    """Master, worker and job name each other, share the tables' folder, and run one image, so one Python."""
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["cluster"]} == set(CLUSTER)
    assert {SERVICES[name]["image"] for name in CLUSTER} == {SERVICES["spark"]["image"]}
    master, worker, job = (SERVICES[name]["command"] for name in CLUSTER)
    url = f"spark://{master[master.index('--host') + 1]}:{master[master.index('--port') + 1]}"
    assert url == worker[-1] == "spark://spark-master:7077"
    assert f"--master={url}" in job
    assert "--conf=spark.driver.host=spark-bronze" in job
    [job_folder] = [mount for mount in mounts("spark-bronze") if mount[0] == "spark"]
    assert job_folder in mounts("spark-worker")


def test_the_cluster_runs_what_pyspark_brings() -> None:
    home = Path(pyspark.__file__).parent
    names = set()
    for jar in (home / "jars").glob("spark-core_*.jar"):
        names |= set(zipfile.ZipFile(jar).namelist())
    for name in ("spark-master", "spark-worker"):
        script, main = SERVICES[name]["entrypoint"]
        assert (home / "bin" / script).is_file()
        assert f"{main.replace('.', '/')}.class" in names


@pytest.mark.parametrize("service", ["spark", "spark-worker", "spark-bronze"])
def test_spark_may_load_the_native_libraries_it_unpacks(service: str) -> None:
    """A tmpfs is mounted noexec unless told; zstd and snappy are unpacked into the temporary folder and loaded."""
    [temporary] = [text for text in SERVICES[service]["tmpfs"] if text.startswith("/tmp:")]
    assert "exec" in temporary.partition(":")[2].split(",")


# --- Kafka -----------------------------------------------------------------------------------------------------------


def listeners(broker: str, name: str) -> dict[str, str]:
    """``KAFKA_LISTENERS`` or ``KAFKA_ADVERTISED_LISTENERS`` as listener name to ``host:port``."""
    return dict(text.split("://") for text in environment(broker)[name].split(","))


@pytest.mark.parametrize("broker", BROKERS)
def test_a_broker_advertises_names_its_clients_can_reach(broker: str) -> None:
    listening = listeners(broker, "KAFKA_LISTENERS")
    advertised = listeners(broker, "KAFKA_ADVERTISED_LISTENERS")
    assert set(listening) == {"INTERNAL", "EXTERNAL", "CONTROLLER"}
    assert set(advertised) == {"INTERNAL", "EXTERNAL"}, "the controller listener must not be advertised"
    assert advertised["INTERNAL"] == f"{broker}{listening['INTERNAL']}"
    assert SERVICES[broker]["hostname"] == broker
    [(_, host, container)] = published(broker)
    assert advertised["EXTERNAL"] == f"localhost:{host}"
    assert listening["EXTERNAL"] == f":{container}"
    protocols = environment(broker)["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"]
    assert {text.partition(":")[0] for text in protocols.split(",")} == set(listening)


def test_the_brokers_are_one_cluster() -> None:
    nodes = {broker: environment(broker)["KAFKA_NODE_ID"] for broker in BROKERS}
    assert len(set(nodes.values())) == len(BROKERS) == 3
    voters = ",".join(
        f"{nodes[broker]}@{broker}{listeners(broker, 'KAFKA_LISTENERS')['CONTROLLER']}" for broker in BROKERS
    )
    for broker in BROKERS:
        assert environment(broker)["KAFKA_CONTROLLER_QUORUM_VOTERS"] == voters
        [(source, target, _)] = mounts(broker)
        assert (source, target) == (broker, environment(broker)["KAFKA_LOG_DIRS"])


def test_the_cluster_id_is_one_that_kafka_takes() -> None:
    """A random id is 16 bytes in 22 characters; Kafka refuses to format its storage with anything else."""
    cluster = environment(BROKERS[0])["CLUSTER_ID"]
    raw = base64.urlsafe_b64decode(cluster + "==")
    assert len(raw) == 16
    assert base64.urlsafe_b64encode(raw).decode().rstrip("=") == cluster


def test_one_broker_may_fail_and_a_silent_one_is_noticed_in_seconds() -> None:
    for broker in BROKERS:
        ours = environment(broker)
        assert ours["KAFKA_DEFAULT_REPLICATION_FACTOR"] == "3"
        assert ours["KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR"] == "3"
        assert ours["KAFKA_MIN_INSYNC_REPLICAS"] == "2"
        assert ours["KAFKA_BROKER_SESSION_TIMEOUT_MS"] == "3000"
        assert int(ours["KAFKA_BROKER_HEARTBEAT_INTERVAL_MS"]) * 4 <= 3000
        assert ours["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


# --- EMQX ------------------------------------------------------------------------------------------------------------


def found(name: str) -> Path:
    """Where compose puts a file that EMQX reads; those of the volume of secrets as `gateway auth init` makes them."""
    path = Path("/opt/emqx") / name
    if path.parent == Path("/run/gateway-auth"):
        return EMQX_SECRETS / path.name
    mounted = {target: source for source, target, _ in mounts("emqx")}
    return ROOT / mounted[str(path)]


EMQX_MADE = tempfile.TemporaryDirectory(prefix="gateway-emqx-")
EMQX_SECRETS = Path(EMQX_MADE.name)
for file_name, file_text in emqx_files("of-the-test", "of-the-test", "of-the-test").items():
    (EMQX_SECRETS / file_name).write_text(file_text)
EMQX_VALUES = read_hocon(DEPLOY / "emqx" / "emqx.conf", found)
EMQX = flatten(EMQX_VALUES)
EMQX_AUTH: AuthConf = read_auth_conf(EMQX_VALUES, found)
# Names of EMQX 5.8's schema that are used here. A misspelt one would stop EMQX at its start. Those of authentication
# and authorization are checked by the reader of these sections.
EMQX_NAMES = {
    "node.data_dir", "cluster.name", "cluster.discovery_strategy", "mqtt.max_inflight", "mqtt.max_mqueue_len",
    "mqtt.shared_subscription_strategy", "api_key.bootstrap_file", "force_shutdown.max_heap_size",
    "force_shutdown.max_mailbox_size", "dashboard.default_password", "dashboard.listeners.http.bind",
    "prometheus.enable_basic_auth",
}  # fmt: skip


def test_emqx_is_configured_with_names_it_knows() -> None:
    assert {name for name in EMQX if not name.startswith(("authentication.", "authorization."))} <= EMQX_NAMES


def test_emqx_can_read_its_files() -> None:
    """Its reader of HOCON promises nothing beyond ASCII."""
    for name in ("emqx.conf", "acl.conf"):
        assert (DEPLOY / "emqx" / name).read_text().isascii()


def test_emqx_lets_a_session_have_the_window_the_gateway_asks_for() -> None:
    assert int(EMQX["mqtt.max_inflight"]) >= settings().mqtt.receive_maximum


def test_emqx_keeps_a_devices_order() -> None:
    """Only two of its strategies do, and `shared` relies on it."""
    assert settings().mqtt.distribution == "shared"
    assert EMQX["mqtt.shared_subscription_strategy"] in {"hash_clientid", "hash_topic"}


def test_emqx_holds_what_arrives_while_the_gateway_restarts() -> None:
    per_session = 4000  # messages a second, four times what its makers recommend
    away = settings().shutdown_timeout.total_seconds()
    assert int(EMQX["mqtt.max_mqueue_len"]) >= per_session * away


def test_emqx_does_not_kill_the_session_whose_queue_is_full() -> None:
    """The queue lies in the connection's own heap, and a process that outgrows the limit is killed with its queue."""
    heap_mib = int(EMQX["force_shutdown.max_heap_size"].removesuffix("MB"))
    assert heap_mib << 20 >= int(EMQX["mqtt.max_mqueue_len"]) * 2048


def test_emqx_keeps_what_it_stores_under_a_name_that_stays() -> None:
    node = environment("emqx")["EMQX_NODE_NAME"]
    name = node.partition("@")[2]
    assert SERVICES["emqx"]["hostname"] == name
    assert name in SERVICES["emqx"]["networks"]["default"]["aliases"]
    assert ("emqx", f"/opt/emqx/{EMQX['node.data_dir']}", "rw") in mounts("emqx")


# --- closed when nobody answers ---------------------------------------------------------------------------------------


def http_backends() -> list[HttpConf]:
    return [*EMQX_AUTH.authentication, *(one for one in EMQX_AUTH.sources if isinstance(one, HttpConf))]


def test_emqx_asks_for_every_client_and_denies_what_nobody_has_allowed() -> None:
    assert len(EMQX_AUTH.authentication) == 1, "a second authenticator is asked whenever the first says nothing"
    assert EMQX_AUTH.listeners_without_authentication == ()
    assert EMQX_AUTH.no_match == "deny"
    http, acl = EMQX_AUTH.sources
    assert isinstance(http, HttpConf)
    assert isinstance(acl, Path), "acl.conf comes last"


def test_acl_conf_allows_nothing() -> None:
    """It is asked when the service says nothing, so whatever it allows is allowed while the service is down."""
    lines = [line for line in (DEPLOY / "emqx" / "acl.conf").read_text().splitlines() if not line.startswith("%%")]
    assert lines == ["{deny, all}."]


def test_emqx_and_the_service_speak_of_the_same_place_and_secret() -> None:
    ours = settings("auth").auth
    for one in http_backends():
        assert (one.host, one.port) == ("auth", ours.port)
        assert one.headers["authorization"] == "Bearer of-the-test"
    assert [one.path for one in http_backends()] == ["/authn", "/authz"]
    assert ours.shared_secret is not None
    assert ours.host == "0.0.0.0", "EMQX is another container"


def test_emqx_waits_longer_than_the_service_takes() -> None:
    answer_s = settings("auth").auth.answer_timeout.total_seconds()
    for one in http_backends():
        assert one.request_timeout_s >= 2 * answer_s


def test_a_slow_login_holds_up_nobody_behind_it() -> None:
    """The service answers the requests of a connection in turn."""
    assert {one.pipelining for one in http_backends()} == {1}
    assert sum(one.pool_size for one in http_backends()) * 3 <= settings("auth").auth.limits.connections


def test_emqx_tells_what_the_service_needs_to_know() -> None:
    login, access = http_backends()
    names = "username clientid password peerhost cert_common_name"
    assert login.body == {name: f"${{{name}}}" for name in names.split()}
    plain = "username clientid peerhost cert_common_name topic action qos retain"
    attributes = {f"attr_{name}": f"${{client_attrs.{name}}}" for name in settings("auth").auth.client_attributes}
    assert access.body == {
        **{name: f"${{{name}}}" for name in plain.split()},
        "tenant": "${client_attrs.tenant}",
        "groups": "${client_attrs.groups}",
        **attributes,
    }


def test_no_secret_stands_in_a_file_or_an_environment() -> None:
    secret = {name for name, (_, of) in environment_names(Settings).items() if of.kind == "secret"}
    for service in SERVICES:
        for name, value in environment(service).items():
            assert name not in secret or name.endswith("_FILE"), f"{service} has {name} in its environment"
            if name.endswith("_FILE"):
                assert [target for _, target, _ in mounts(service) if value.startswith(f"{target}/")], value
    for text in [(DEPLOY / "gateway.toml").read_text(), (DEPLOY / "emqx" / "emqx.conf").read_text()]:
        named = re.findall(r'^\s*"?(\w*(?:password|secret|token|authorization)\w*)"? *= *(.*)', text, re.MULTILINE)
        words = [name for name, value in named if not value.startswith('"${')]
        assert words == [], "a secret is written down"


def test_each_container_sees_its_own_secrets_alone() -> None:
    seen = {
        volume: {name for name in SERVICES for source, _, _ in mounts(name) if source == volume} for volume in SECRETS
    }
    assert seen == {
        "auth-service": {"auth-init", "auth"},
        "auth-emqx": {"auth-init", "emqx"},
        "auth-gateway": {"auth-init", "gateway"},
        "auth-operator": {"auth-init", "gateway", "auth", "prometheus"},
        "auth-devices": {"auth-init"},
        "auth-grafana": {"auth-init", "grafana"},
    }
    for name in SERVICES:
        for source, target, mode in mounts(name):
            if source in SECRETS and name != "auth-init":
                place = "/run/gateway-operator" if source == "auth-operator" else "/run/gateway-auth"
                assert (target, mode) == (place, "ro")
    assert SERVICES["auth-init"]["network_mode"] == "none"


def test_secrets_are_neither_in_git_nor_in_the_image() -> None:
    ignored = (DEPLOY / "secrets" / ".gitignore").read_text().split()
    assert ignored[-3:] == ["*", "!.gitignore", "!README.md"]
    sent = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!deploy")]
    scripts = [f"!deploy/{name}.py" for name in ("healthcheck", "kubernetes/pre_stop", "kubernetes/spark_executor")]
    assert sorted(sent) == [*scripts, "!deploy/wheelhouse"]


def test_volumes_of_secrets_begin_with_their_owner() -> None:
    """A volume takes owner and mode from the image's folder; without one it is root's, and nothing can be written."""
    [folders] = re.findall(r"for folder in ([a-z ]+);", (ROOT / "Dockerfile").read_text())
    of_init = {target.rpartition("/")[2] for source, target, _ in mounts("auth-init") if source in SECRETS}
    assert set(folders.split()) == of_init
    for service in ("emqx", "prometheus", "grafana"):
        assert SERVICES[service]["group_add"] == ["10001"], f"{service} runs as another user"


def test_the_gateway_has_its_user_and_a_key_of_emqxs_rest_api(tmp_path: Path) -> None:
    """That of the bootstrap file, on the dashboard's port, with the secret of a volume that the gateway sees."""
    assert environment("gateway")["GATEWAY_MQTT__USERNAME"] == GATEWAY_USER
    emqx = settings().emqx
    assert emqx.url == f"http://emqx:{EMQX['dashboard.listeners.http.bind']}"
    assert EMQX["api_key.bootstrap_file"] == "/run/gateway-auth/api_keys"
    ours = load(DEPLOY / "gateway.toml", environ={}, overrides={"data_dir": str(tmp_path)}).settings
    FirstStart(ours, tmp_path / "secrets").run()
    key, secret = (tmp_path / "secrets/emqx/api_keys").read_text().strip().split(":")
    assert key == emqx.api_key
    named = Path(environment("gateway")["GATEWAY_EMQX__API_SECRET_FILE"])
    assert ("auth-gateway", str(named.parent), "ro") in mounts("gateway")
    assert (tmp_path / "secrets/gateway" / named.name).read_text() == secret


def test_what_must_not_be_asked_before_it_is_there_waits() -> None:
    waits = {name: SERVICES[name]["depends_on"] for name in ("emqx", "auth", "gateway")}
    assert waits["emqx"]["auth-init"]["condition"] == "service_completed_successfully"
    assert waits["auth"]["auth-init"]["condition"] == "service_completed_successfully"
    assert waits["gateway"]["auth"]["condition"] == "service_healthy"


# --- Prometheus and Grafana ------------------------------------------------------------------------------------------


PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())


def targets(job: str) -> list[str]:
    [found] = [one for one in PROMETHEUS["scrape_configs"] if one["job_name"] == job]
    return [target for group in found["static_configs"] for target in group["targets"]]


def test_prometheus_scrapes_emqx_inside_the_network() -> None:
    [emqx] = [one for one in PROMETHEUS["scrape_configs"] if one["job_name"] == "emqx"]
    assert emqx["metrics_path"] == "/api/v5/prometheus/stats"
    assert targets("emqx") == [f"emqx:{EMQX['dashboard.listeners.http.bind']}"]
    assert EMQX["prometheus.enable_basic_auth"] is False, "the scrape has no credentials"
    assert ("127.0.0.1", 18083, int(EMQX["dashboard.listeners.http.bind"])) in published("emqx")


def test_prometheus_shows_the_token_that_the_ports_ask_for() -> None:
    [token_file] = {environment(service)["GATEWAY_HTTP__TOKEN_FILE"] for service in ("gateway", "auth")}
    place = "/run/gateway-operator"
    assert str(Path(token_file).parent) == place
    for job in ("gateway", "auth"):
        [found] = [one for one in PROMETHEUS["scrape_configs"] if one["job_name"] == job]
        assert found["authorization"] == {"credentials_file": token_file}
        assert settings(job).http.token is not None
    for service in ("gateway", "auth", "prometheus"):
        assert ("auth-operator", place, "ro") in mounts(service)


def test_prometheus_scrapes_services_that_exist() -> None:
    for job in PROMETHEUS["scrape_configs"]:
        for target in targets(job["job_name"]):
            host = target.partition(":")[0]
            assert host in SERVICES or host == "localhost", f"{job['job_name']} scrapes {target}"


def test_prometheus_finds_the_rules() -> None:
    inside = {target: source for source, target, _ in mounts("prometheus")}
    place = inside["/etc/prometheus/rules"]
    assert PROMETHEUS["rule_files"] == ["rules/*.yml"], "beside prometheus.yml, which is in /etc/prometheus"
    assert inside["/etc/prometheus/prometheus.yml"] == "./deploy/prometheus/prometheus.yml"
    assert (ROOT / place / "gateway.yml").is_file()


def test_grafana_has_a_password_of_its_own_and_the_dashboard() -> None:
    ours = environment("grafana")
    assert ours["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/gateway-auth/admin_password"
    assert ("auth-grafana", "/run/gateway-auth", "ro") in mounts("grafana")
    assert ("auth-grafana", "/var/lib/gateway-auth/grafana", "rw") in mounts("auth-init")
    [provider] = yaml.safe_load((DEPLOY / "grafana/dashboards/dashboards.yml").read_text())["providers"]
    place = provider["options"]["path"]
    assert ("./deploy/grafana/dashboards", place, "ro") in mounts("grafana")
    home = Path(ours["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == place
    assert (DEPLOY / "grafana/dashboards" / home.name).is_file()


def test_grafana_finds_prometheus() -> None:
    [source] = yaml.safe_load((DEPLOY / "grafana" / "datasources" / "prometheus.yml").read_text())["datasources"]
    [(_, _, port)] = published("prometheus")
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", f"http://prometheus:{port}", True)


# --- the image -------------------------------------------------------------------------------------------------------


def test_compose_builds_stages_that_exist() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for service in OURS:
        assert SERVICES[service]["build"]["target"] in stages


def test_everything_copied_into_the_image_exists_and_is_sent_to_the_build() -> None:
    ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert ignore[0] == "*", "what is not named must not be sent: secrets and gigabytes lie in a checkout"
    sent = [pattern[1:] for pattern in ignore if pattern.startswith("!")]
    lines = re.findall(r"^COPY (?!--from)(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sources = [source.rstrip("/") for line in lines for source in line.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), f"the Dockerfile copies {source}, which is not there"
        assert any(fnmatch.fnmatch(source, pattern) for pattern in sent), f".dockerignore leaves out {source}"


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()
        self.wfile.write(b"kafka: no leader\nmore")

    def log_message(self, *_: object) -> None:
        """Says nothing: the test's own failure does."""


@pytest.fixture
def health_port() -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def healthcheck() -> Any:
    module = load_script(DEPLOY / "healthcheck.py")
    module.TIMEOUT_SECONDS = 60.0
    return module


def test_the_health_check_asks_where_the_gateway_listens(healthcheck: Any, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[http]\nhost = "0.0.0.0"\nport = 1234\n')
    named = {"GATEWAY_CONFIG": str(file)}
    assert healthcheck.address(named) == ("127.0.0.1", 1234)
    assert healthcheck.address({**named, "GATEWAY_HTTP__PORT": "99"}) == ("127.0.0.1", 99)
    assert healthcheck.address({**named, "GATEWAY_HTTP__HOST": "::"}) == ("::1", 1234)
    default = Settings().http
    nowhere = {"GATEWAY_CONFIG": str(tmp_path / "none")}
    assert healthcheck.address(nowhere) == (default.host, default.port)
    service = Settings().auth
    assert healthcheck.address(nowhere, "auth") == (service.operator_host, service.operator_port)
    file.write_text("[auth]\nport = 1\noperator_port = 4321\n")
    assert healthcheck.address(named, "auth") == ("127.0.0.1", 4321)
    assert healthcheck.address({**named, "GATEWAY_AUTH__OPERATOR_HOST": "0.0.0.0"}, "auth") == ("127.0.0.1", 4321)


def test_the_health_check_reads_a_file_and_variables_as_the_gateway_does(
    healthcheck: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte order mark, as editors on Windows write it, and empty variables, as compose makes of `${UNSET:-}`."""
    monkeypatch.chdir(tmp_path)
    Path("gateway.toml").write_text("[http]\nport = 1234\n", "utf-8-sig")
    empty = {"GATEWAY_CONFIG": "", "GATEWAY_HTTP__PORT": "", "GATEWAY_HTTP__TLS__CERTIFICATE_FILE": ""}
    assert load(environ=empty).settings.http.port == 1234
    assert healthcheck.address(empty) == ("127.0.0.1", 1234)
    assert not healthcheck.encrypted(empty)


def test_the_health_check_reads_whole_tables_and_the_secrets_directory(
    healthcheck: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gateway.toml").write_text("[http]\nport = 1234\n")
    Path("secrets").mkdir()
    Path("secrets/http__port").write_text("2345\n")
    Path("secrets/kafka__client_id").write_text("plant")
    environ = {"GATEWAY_SECRETS_DIR": "secrets"}
    for text in ("", '{"port": 3456}'):
        environ["GATEWAY_HTTP"] = text
        assert healthcheck.address(environ) == ("127.0.0.1", load(environ=environ).settings.http.port)
        assert not healthcheck.encrypted(environ)
    assert healthcheck.address({"GATEWAY_AUTH": '{"operator_port": 7}'}, "auth") == ("127.0.0.1", 7)
    assert healthcheck.encrypted({"GATEWAY_HTTP": '{"tls": {"certificate_file": "c"}}'})
    assert healthcheck.encrypted({"GATEWAY_HTTP__TLS": '{"certificate_file": "c"}'})
    Path("secrets/http__tls__certificate_file").write_text("c")
    assert healthcheck.encrypted(environ)


def test_the_health_check_tells_healthy_from_not(
    healthcheck: Any, health_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"GATEWAY_HTTP__PORT": str(health_port)}
    assert healthcheck.main(["/healthz"], environ) == 0
    capsys.readouterr()
    assert healthcheck.main(["/readyz"], environ) == 1
    assert capsys.readouterr().out == "503 kafka: no leader\n"


def test_the_health_check_fails_when_nothing_answers(healthcheck: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert healthcheck.main([], {"GATEWAY_HTTP__PORT": "1"}) == 1
    assert capsys.readouterr().out.startswith("/healthz: ")


def test_the_health_check_speaks_tls_where_the_port_does(healthcheck: Any, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    named = {"GATEWAY_CONFIG": str(file)}
    assert not healthcheck.encrypted(named)
    file.write_text("[http]\nport = 1\n")
    assert not healthcheck.encrypted(named)
    assert healthcheck.encrypted({**named, "GATEWAY_HTTP__TLS__CERTIFICATE_FILE": "c"})
    file.write_text('[http.tls]\ncertificate_file = "c"\n')
    assert healthcheck.encrypted(named)
    for variable, text in (("GATEWAY_HTTP", '{"tls": null}'), ("GATEWAY_HTTP__TLS", "null")):
        assert load(environ={**named, variable: text}).settings.http.tls is None
        assert not healthcheck.encrypted({**named, variable: text})
