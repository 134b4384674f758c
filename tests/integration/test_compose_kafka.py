"""The Kafka brokers of docker-compose.yml, read by Kafka's own configuration code."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.local.runtime.jars import resolve
from gateway.local.runtime.java import ensure_java

ROOT = Path(__file__).resolve().parents[2]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
# Read by the image's scripts or the JVM rather than by the broker.
NOT_PROPERTIES = {"KAFKA_HEAP_OPTS"}

# Prints what the broker's own class makes of each set of properties: the names it does not know, or its complaint.
READ = """
import json, sys
import jpype
library, jars, brokers = json.load(sys.stdin)
jpype.startJVM(library, classpath=jars)
known = {str(name) for name in jpype.JClass("org.apache.kafka.server.config.AbstractKafkaConfig").CONFIG_DEF.names()}
answers = {}
for broker, values in brokers.items():
    properties = jpype.JClass("java.util.Properties")()
    for name, value in values.items():
        properties.put(name, value)
    try:
        jpype.JClass("kafka.server.KafkaConfig").fromProps(properties)
        answers[broker] = sorted(set(values) - known)
    except jpype.JException as error:
        answers[broker] = str(error)
print(json.dumps(answers))
"""


def property_name(variable: str) -> str:
    """The server property that Kafka's image makes of a variable: _ is a dot, __ an underscore, ___ a dash."""
    name = variable.removeprefix("KAFKA_").lower()
    return name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")


def properties(service: str) -> dict[str, str]:
    variables = SERVICES[service]["environment"]
    return {
        property_name(name): str(value)
        for name, value in variables.items()
        if name.startswith("KAFKA_") and name not in NOT_PROPERTIES
    }


def read(brokers: dict[str, dict[str, str]]) -> dict[str, Any]:
    asked = json.dumps([str(ensure_java().jvm_library), [str(jar) for jar in resolve("kafka")], brokers])
    ran = subprocess.run([sys.executable, "-c", READ], input=asked, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    answers: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return answers


def test_kafka_takes_the_brokers_settings() -> None:
    """Listeners, their protocols, roles, quorum and replication, as the broker checks them at its start."""
    brokers = {name: properties(name) for name in SERVICES if name.startswith("kafka-")}
    assert len(brokers) == 3
    assert read(brokers) == {name: [] for name in brokers}


@pytest.mark.parametrize(("name", "value"), [
    ("advertised.listeners", "INTERNAL://kafka-1:9092,OUTSIDE://localhost:19092"),
    ("controller.quorum.voters", "2@kafka-2:9093,3@kafka-3:9093"),
    ("broker.sesion.timeout.ms", "3000"),
])  # fmt: skip
def test_a_mistake_in_them_would_be_noticed(name: str, value: str) -> None:
    assert read({"kafka-1": properties("kafka-1") | {name: value}})["kafka-1"], f"{name}={value} passed"
