"""`gateway demo --auth`: the broker asks a real access service, and what the devices may not do they cannot."""

import csv
import json
import re
import signal
from pathlib import Path

import pytest

from tests.brokers.client import Client, RefusedError
from tests.integration.test_demo import FLOWING, RunningDemo
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.slow


def test_every_device_logs_in_and_nobody_else_does(tmp_path: Path) -> None:
    root = tmp_path / "kept"
    options = ["--auth", "--no-spark", "--duration", "600", "--devices", "20", "--keep", str(root)]
    demo = RunningDemo(tmp_path / "tmp", *options)
    try:
        demo.wait_for(FLOWING)
        [port] = [found[1] for line in demo.told if (found := re.search(r"MQTT broker: 127\.0\.0\.1:(\d+)", line))]
        with (root / "auth/secrets/devices/devices.csv").open(newline="") as file:
            secrets = {row[0]: row[1] for row in list(csv.reader(file))[1:]}
        assert len(secrets) == 20
        one, two = sorted(secrets)[:2]

        for user in [(one, "wrong"), (one, secrets[two]), ("nobody", secrets[one]), None]:
            with pytest.raises(RefusedError):
                Client(int(port), user=user)
        with Client(int(port), client_id="intruder", user=(one, secrets[one])) as intruder:
            others = (f"devices/{two}/#", f"devices/{two}/req/#", "devices/+/req/#")
            for topic_filter in ("#", "devices/+/telemetry", "$share/gateway/devices/+/telemetry", *others):
                with pytest.raises(RefusedError):
                    intruder.subscribe(topic_filter)
            intruder.subscribe(f"devices/{one}/commands")
            # Would be counted as a message of the other device, and so break the account.
            assert intruder.publish_refused(f"devices/{two}/telemetry", b'{"seq": 0}')
            assert intruder.closed.wait(DEADLINE_S)
        demo.process.send_signal(signal.SIGINT)
        status, out = demo.finish()
        assert status == 0, "\n".join(demo.told)
        told = json.loads(out)
        assert told["missing"] == told["duplicates"] == 0
        assert told["kafka"] == told["published"] > 0
        commands = told["commands"]
        assert commands["finished"].get("succeeded", 0) > 0, "the rules let commands and answers through"
        assert set(commands["finished"]) <= {"succeeded", "timed_out"}
        assert told["access"]["logins_allowed"] >= 20 + 1 + 1, "the devices, the gateway's sessions, the intruder"
        assert told["access"]["logins_denied"] >= 4
        assert told["access"]["topics_denied"] >= 7
        [line] = [line for line in demo.told if line.startswith("Access: ")]
        assert "each device with a secret of its own" in line
        everything = "\n".join([*demo.told, out, (root / "auth" / "auth.log").read_text()])
        assert not [name for name, secret in secrets.items() if secret in everything]
    finally:
        demo.end()
    demo.assert_nothing_left()
