"""The table of error codes that was reviewed is the one of the Kafka that runs here."""

import os
import re
import subprocess

from bridge.kafka.error_codes import AnswerError
from gateway.local.runtime.jars import resolve
from gateway.local.runtime.java import ensure_java, jvm_environment
from tests.unit.test_kafka_error_codes import MEANINGS, REVIEWED

OURS_ALONE = {-1, 8}  # sent again though Kafka's own client would not: bridge.kafka.error_codes says why


def test_kafka_s_own_table_of_errors() -> None:
    """Every code is reviewed, our names are Kafka's, and what it calls retriable is tried again, and two more."""
    ran = subprocess.run(
        [ensure_java().executable, "-Xmx64m", "-cp", os.pathsep.join(map(str, resolve("kafka"))),
         "org.apache.kafka.common.protocol.Errors"],
        capture_output=True, text=True, check=True, env=jvm_environment(), timeout=60,
    )  # fmt: skip
    rows = re.findall(r"<tr>\s*<td>(\w+)</td>\s*<td>(-?\d+)</td>\s*<td>(True|False)</td>", ran.stdout)
    assert len(rows) > 100
    names = {int(code): name for name, code, _ in rows}
    assert set(names) == set(REVIEWED)
    for code, name in names.items():
        assert str(AnswerError(code)) in {name, f"error {code}"}
    retriable = {int(code) for _, code, flag in rows if flag == "True"}
    assert MEANINGS["retry"] == retriable | OURS_ALONE
