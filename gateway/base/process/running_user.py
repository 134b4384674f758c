"""The user of a command, for audits."""

import os
import pwd


def running_user() -> str:
    """``uid=1000(ann)``, as ``id`` writes it: the real user id, which the kernel knows, with its name.
    ``LOGNAME`` and ``USER`` are ignored: anybody can set them. Only for root ``SUDO_USER`` is added."""
    uid = os.getuid()
    try:
        said = f"uid={uid}({pwd.getpwuid(uid).pw_name})"
    except KeyError:  # a user id without a name, as in some containers
        said = f"uid={uid}"
    behind = os.environ.get("SUDO_USER", "") if uid == 0 else ""
    return f"{said} for {behind}" if behind else said
