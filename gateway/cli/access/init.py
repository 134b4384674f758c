"""``gateway auth init``: the first database, users and secrets."""

import argparse
from collections.abc import Collection
from itertools import combinations
from pathlib import Path

from auth.store.first_start import FirstStart
from config.errors import ConfigError, ExitStatus
from config.loading.load import load
from config.settings import Settings
from gateway.cli.arguments import load_noted
from gateway.cli.parser import Commands, repeated
from gateway.cli.table import mention, tell

_MADE = ("auth.shared_secret", "mqtt.password", "emqx.api_secret")
_STANDS_IN = "stands-in-for-a-secret-to-be-made"
_EPILOG = """\
Secrets are made at random and written to files in DIR, each folder for one reader:

  service/shared_secret      for auth.shared_secret_file
  emqx/authorization.conf    for EMQX, included by deploy/emqx/emqx.conf; so is dashboard.conf
  emqx/api_keys              for EMQX's api_key.bootstrap_file: a key for the gateway, emqx.api_key or "gateway"
  gateway/mqtt_password      for mqtt.password_file; the user is mqtt.username, or "gateway"
  gateway/emqx_api_secret    for emqx.api_secret_file
  devices/devices.csv        names and secrets of the devices made here
  grafana/admin_password     Grafana's first password, where the folder grafana is there

No other place has them: the database has hashes.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.verb("init", _run, epilog=_EPILOG, json="")
    parser.add_argument(
        "--secrets", type=Path, metavar="DIR", help="folder for the secrets (default: auth/secrets below data_dir)"
    )
    repeated(
        parser,
        "--device",
        "NAME",
        "make this device, with a secret of its own; may be given several times (default: one called device-1, when "
        "the database has no user)",
        dest="devices",
    )
    parser.add_argument(
        "--users",
        type=Path,
        metavar="FILE",
        help="when the database is new, add the users of this file, if it exists, in a format of `user import`, "
        "such as CSV with the first line user_id,password,is_superuser",
    )


def _run(arguments: argparse.Namespace) -> int:
    """Makes what the service and EMQX need to run: the database of users and rules with the gateway's own user, EMQX's
    secret for the service, and first devices. Existing parts stay as they are, so the command can run before every
    start. The gateway's user gets the right to subscribe to new routes.
    """
    settings, missing = _settings(arguments.config)
    folder = (arguments.secrets or settings.data_dir / "auth" / "secrets").absolute()
    said = FirstStart(settings, folder, mention).run(arguments.devices, arguments.users)
    tell("\n".join(said) if said else "Everything exists already: nothing was made.")
    if missing:
        load(arguments.config)  # raises if the settings name other files
    return ExitStatus.OK


def _settings(config: Path | None) -> tuple[Settings, bool]:
    """The settings without the secrets that this command has yet to make, and whether there are such. Raises
    ConfigError."""
    try:
        return load_noted(config).settings, False
    except ConfigError:
        for count in range(1, len(_MADE) + 1):
            for names in combinations(_MADE, count):
                try:
                    settings = load(config, overrides=dict.fromkeys(names, _STANDS_IN)).settings
                except ConfigError:
                    continue
                return _without(settings, names), True
        raise


def _without(settings: Settings, names: Collection[str]) -> Settings:
    """The settings without the missing secrets of these names."""
    for name in names:
        table, _, field = name.partition(".")
        emptied = getattr(settings, table).model_copy(update={field: None})
        settings = settings.model_copy(update={table: emptied})
    return settings
