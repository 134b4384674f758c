"""Run by Kubernetes before it stops a pod of the gateway: retires the gateway if the pod will not come back.

A pod stops for two reasons that Kubernetes does not tell it. For a restart, a new version or a drained node it comes
back under its name, and its MQTT sessions have to wait for it; that is what the SIGTERM that follows does. When there
are to be fewer replicas it never comes back, and EMQX would go on giving its sessions a share of the messages: so they
are ended, by `gateway retire`. Which of the two it is, the StatefulSet's number of replicas tells.

When that cannot be learned the sessions are kept: a session too many expires, one too few has lost what was queued.
Standard library only. Ends with the status of `gateway retire`, or 0.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LOG = Path("/proc/1/fd/2")  # what a hook prints goes nowhere; the gateway's own log is read
TIMEOUT_S = 3.0


def replicas(name: str, environ: Mapping[str, str], account: Path) -> int:
    """How many replicas the StatefulSet is to have. Blocks. Raises OSError, HTTPException, KeyError or ValueError."""
    path = f"/apis/apps/v1/namespaces/{environ['POD_NAMESPACE']}/statefulsets/{name}/scale"
    connection = http.client.HTTPSConnection(
        environ["KUBERNETES_SERVICE_HOST"],
        int(environ.get("KUBERNETES_SERVICE_PORT", "443")),
        timeout=TIMEOUT_S,
        context=ssl.create_default_context(cafile=str(account / "ca.crt")),
    )
    try:
        token = (account / "token").read_text().strip()
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise ValueError(f"Kubernetes answers {answer.status} to {path}; the Role `gateway` allows it")
        return int(json.loads(body)["spec"].get("replicas", 0))
    finally:
        connection.close()


def main(environ: Mapping[str, str], account: Path = ACCOUNT, log: Path = LOG) -> int:
    """Does what the module says; returns the status to end with."""
    pod = environ["GATEWAY_INSTANCE"]
    name, _, ordinal = pod.rpartition("-")
    try:
        wanted = replicas(name, environ, account)
        stays = int(ordinal) < wanted
    except (OSError, http.client.HTTPException, KeyError, ValueError) as error:
        _say(log, "warning", "scale_unknown", error=str(error), consequence="MQTT sessions are kept for a return")
        return 0
    if stays:
        _say(log, "info", "pod_comes_back", replicas=wanted)
        return 0
    _say(log, "info", "pod_retires", replicas=wanted)
    done = subprocess.run(["gateway", "retire"], check=False, capture_output=True, text=True)
    level = "info" if done.returncode == 0 else "warning"
    _say(log, level, "pod_retired", status=done.returncode, said=(done.stdout + done.stderr).strip())
    return done.returncode


def _say(log: Path, level: str, event: str, **fields: object) -> None:
    line = json.dumps({"level": level, "event": event, "logger": "pre_stop", **fields})
    try:
        with log.open("a") as file:
            file.write(f"{line}\n")
    except OSError:  # another user's process is number 1
        print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(os.environ))
