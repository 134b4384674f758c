"""Makes what the service and EMQX need to start: a database with first users and rules, and secrets in files.

Everything is made once. Existing files and users stay unchanged, so the same command can run before every start.

    DIR/service/shared_secret        the secret that EMQX sends to the service (auth.shared_secret_file)
    DIR/emqx/authorization.conf      the same as a header, for emqx.conf to include
    DIR/emqx/dashboard.conf          the first password of EMQX's dashboard, for emqx.conf to include
    DIR/emqx/api_keys                a key of EMQX's REST API for the gateway (api_key.bootstrap_file)
    DIR/gateway/mqtt_password        the gateway's password (mqtt.password_file)
    DIR/gateway/emqx_api_secret      the secret of its key (emqx.api_secret_file)
    DIR/operator/http_token          the token for status page and metrics (http.token_file)
    DIR/grafana/admin_password       the first password of Grafana, if its folder exists
    DIR/devices/devices.csv          names and secrets of the generated devices

Each folder is for one reader. The files in ``emqx``, ``operator`` and ``grafana`` are readable for their group, since
EMQX, Prometheus and Grafana run as other users.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from auth.errors import StoreError
from auth.model import Action, Rule, Who
from auth.passwords import Argon2Cost, generate_secret, hash_argon2id, hash_device_secret
from auth.store.records import User
from auth.store.store import Store, database_path
from auth.store.user_entries import HashForm
from auth.store.user_formats import read_users
from auth.store.user_hashing import hash_entries
from config.errors import ConfigError
from config.numbers import many, some
from config.relations.commands import as_filters

if TYPE_CHECKING:
    from pydantic import SecretStr

    from auth.store.edit import Editor
    from config.settings import Settings

GATEWAY_USER: Final = "gateway"
"""The gateway's user name, if mqtt.username is unset."""

_BY: Final = "auth init"
_PRIVATE, _GROUP = 0o600, 0o640
_SAMPLE_DEVICE: Final = "device-1"
_OWN_TOPICS: Final = "devices/${username}/#"
_SUBSCRIBE: Final[frozenset[Action]] = frozenset({"subscribe"})
_PUBLISH: Final[frozenset[Action]] = frozenset({"publish"})
_HEADING: Final = "user_id,secret"


def emqx_files(
    shared_secret: str, dashboard_password: str, api_secret: str, api_key: str = GATEWAY_USER
) -> dict[str, str]:
    """Contents of the files that ``deploy/emqx/emqx.conf`` names, by file name."""
    return {
        "authorization.conf": f"authorization = {json.dumps(f'Bearer {shared_secret}')}\n",  # HOCON quotes as JSON
        "dashboard.conf": f'default_password = "{dashboard_password}"\n',
        # Without a role: the open-source EMQX up to 5.8 knows none, and refuses a file that names one.
        "api_keys": f"{api_key}:{api_secret}\n",
    }


class FirstStart:
    """Makes missing files, users and rules. ``run`` blocks; two may run at the same time."""

    def __init__(self, settings: Settings, folder: Path, progress: Callable[[str], None] = lambda _text: None) -> None:
        self._settings = settings
        self._progress = progress  # receives a sentence about each slow step
        self._folder = folder  # DIR of the module's docstring
        self._said: list[str] = []
        self._made: set[str] = set()  # names of files

    def run(self, devices: Sequence[str] = (), users_file: Path | None = None) -> list[str]:
        """Make what is missing; returns a sentence for each thing that was made.

        ``devices`` are names of users with generated secrets; existing ones are not changed. A new database gets the
        users of ``users_file``, if there is such a file, otherwise one device. Raises StoreError, ImportFormatError and
        ConfigError.
        """
        self._said, self._made = [], set()
        self._close_to_others()
        self._emqx()
        self._grafana()
        given = self._settings.mqtt.password
        what = "the gateway's password for EMQX"
        password = self._secret("gateway/mqtt_password", given, _PRIVATE, what, generate_secret)
        token = self._settings.http.token
        self._secret("operator/http_token", token, _GROUP, "the token that opens the status page and the metrics")
        path = database_path(self._settings)
        new = not path.exists()
        store = Store(path)
        try:
            store.open()
            with store.edit(_BY) as editor:
                if new:
                    self._say(f"made {path}: the database of users and rules")
                first = store.count_users() == 0 and store.count_rules() == 0
                self._gateway(store, editor, password)
                named = list(devices)
                if first:
                    self._own_topics(editor)
                    taken_over = users_file is not None and self._users(editor, users_file)
                    named += [] if devices or taken_over else [_SAMPLE_DEVICE]
                self._devices(editor, named)
        except BaseException:
            if "mqtt_password" in self._made:  # not in the database, and the next run would take it for known
                (self._folder / "gateway" / "mqtt_password").unlink()
            raise
        finally:
            store.close()
        return self._said

    def _close_to_others(self) -> None:
        """Close ``auth`` below ``data_dir`` (database; secrets unless ``--secrets`` moves them) to other users.

        The group may enter them, for files that are for a group."""
        folder = database_path(self._settings).parent
        if self._settings.auth.database.file is not None or not folder.is_dir():
            return
        found = folder.stat()
        if found.st_mode & stat.S_IRWXO and found.st_uid == os.geteuid():
            folder.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IRWXO)
            self._say(f"closed {folder} to other users of this machine")

    def _say(self, sentence: str) -> None:
        self._said.append(sentence)

    # --- files -------------------------------------------------------------------------------------------------------

    def _emqx(self) -> None:
        """Make the secrets that EMQX and the service share, and EMQX's files with them. Raises ConfigError."""
        given = self._settings.auth.shared_secret
        what = "the secret that EMQX shows to the service"
        secret = self._secret("service/shared_secret", given, _PRIVATE, what)
        if given is not None and given.get_secret_value() != secret:
            raise ConfigError(
                f"auth.shared_secret is another one than that in {self._folder / 'service' / 'shared_secret'}, which "
                "EMQX was given: name that file in auth.shared_secret_file, or remove it to have it made anew from "
                "the setting."
            )
        emqx = self._settings.emqx
        what = "the secret of the gateway's key for EMQX's REST API"
        api_secret = self._secret("gateway/emqx_api_secret", emqx.api_secret, _PRIVATE, what)
        texts = emqx_files(secret, secrets.token_urlsafe(24), api_secret, emqx.api_key or GATEWAY_USER)
        self._copy("authorization.conf", texts["authorization.conf"], "the same for EMQX")
        self._copy("api_keys", texts["api_keys"], "that key for EMQX")
        what = "the first password of EMQX's dashboard"
        self._file("emqx/dashboard.conf", lambda: texts["dashboard.conf"], _GROUP, what)

    def _copy(self, name: str, text: str, what: str) -> None:
        """Write a file for EMQX that repeats another file's content, if that has changed."""
        if self._file(f"emqx/{name}", lambda: text, _GROUP, what) != text.strip():
            self._write(self._folder / "emqx" / name, text, _GROUP)
            self._say(f"wrote emqx/{name} anew: it held another secret")

    def _grafana(self) -> None:
        """Write Grafana's first password, without a line end: Grafana takes the file's whole content."""
        if (self._folder / "grafana").is_dir():
            what = "Grafana's first password"
            self._file("grafana/admin_password", lambda: secrets.token_urlsafe(24), _GROUP, what)

    def _make_folder(self, place: str, mode: int) -> Path:
        """The folder ``place``, made if missing; open to the group unless ``mode``, of its files, is private."""
        folder = self._folder / place
        try:
            for missing in reversed([one for one in folder.parents if not one.exists()]):
                missing.mkdir(exist_ok=True, mode=0o750)  # mkdir(parents=True) would make them readable for all users
            folder.mkdir(exist_ok=True, mode=0o700 if mode == _PRIVATE else 0o750)
        except OSError as error:
            raise ConfigError(
                f"The folder {folder} for secrets cannot be made: {error.strerror}. May this user write there?"
            ) from error
        return folder

    def _secret(
        self,
        file: str,
        given: SecretStr | None,
        mode: int,
        what: str,
        make: Callable[[], str] = lambda: secrets.token_urlsafe(32),
    ) -> str:
        """A secret file's text, made from the setting, or at random without. ``what``: its content, for a sentence."""
        return self._file(file, make if given is None else given.get_secret_value, mode, what)

    def _file(self, file: str, make: Callable[[], str], mode: int, what: str) -> str:
        """The text of a file, which is made if missing: completely or not at all, and by one process only. ``what`` is
        its content, for a sentence."""
        place, name = file.split("/")
        path = self._make_folder(place, mode) / name
        try:
            return _read(path)
        except FileNotFoundError:
            pass
        draft = path.with_name(f".{name}.{os.getpid()}")
        self._write(draft, make(), mode)
        try:
            os.link(draft, path)  # unlike a rename, does not replace a file made meanwhile
        except FileExistsError:
            return _read(path)
        finally:
            draft.unlink(missing_ok=True)
        self._made.add(name)
        self._say(f"made {path}: {what}")
        return _read(path)

    def _write(self, path: Path, text: str, mode: int) -> None:
        """Write a file durably, with this mode. Raises ConfigError."""
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
                os.fchmod(file.fileno(), mode)  # whatever the umask says
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ConfigError(f"The file {path} cannot be written: {error.strerror}.") from error

    # --- users and rules ---------------------------------------------------------------------------------------------

    def _gateway(self, store: Store, editor: Editor, password: str) -> None:
        """Add the gateway's user and its rules: subscribe to its routes' filters, publish its status and commands."""
        name = self._settings.mqtt.username or GATEWAY_USER
        known = editor.users.get("username", name)
        if known is None or "mqtt_password" in self._made:
            if self._settings.mqtt.password is None and "mqtt_password" in self._made:
                stored = hash_device_secret(password, editor.current_device_key())
            else:  # an operator may have chosen it
                hashing = self._settings.auth.hashing
                stored = hash_argon2id(password, Argon2Cost(hashing.memory >> 10, hashing.passes))
            if known is None:
                editor.users.add(User("username", name, stored))
                self._say(f"added the user {name}: the gateway's own")
            else:
                editor.users.change("username", name, "user passwd", password=stored)
                self._say(f"gave the user {name} another password: the file of the old one is gone")
        there = {(one.rule.topic, one.rule.actions) for one in store.rules(kind="username", value=name)}
        wanted = [rule for rule in self._gateway_rules(name) if (rule.topic, rule.actions) not in there]
        # In front, so that no other rule denies it.
        for rule in reversed(wanted):
            editor.rules.insert(rule)
        if wanted:
            self._say(f"added {many(len(wanted), 'rule')} for {name}: its routes, and what it publishes")

    def _gateway_rules(self, name: str) -> Iterator[Rule]:
        """What the gateway's user needs: its routes, and topics of status, canary and commands."""
        settings = self._settings
        who: Who = (("username", name),)
        filters = [topic for route in settings.routes for topic in route.filters]
        for topic in dict.fromkeys(filters):
            yield Rule("allow", topic, who, _SUBSCRIBE)
        if settings.mqtt.status.enabled:
            topic = settings.mqtt.status.topic.replace("${instance}", settings.instance)
            yield Rule("allow", topic, who, _PUBLISH)
        if settings.canary.enabled:
            yield Rule("allow", settings.canary.topic.replace("${instance}", settings.instance), who, _PUBLISH)
        for topic in dict.fromkeys(topic for one in settings.commands for topic in as_filters(one.mqtt_topic)):
            yield Rule("allow", topic, who, _PUBLISH)

    def _own_topics(self, editor: Editor) -> None:
        editor.rules.append(Rule("allow", _OWN_TOPICS))
        self._say(f"added a rule: each user may publish and subscribe below its own name, {_OWN_TOPICS}")

    def _users(self, editor: Editor, path: Path) -> bool:
        """Import the users of a file; False if there is no such file."""
        if not path.exists():
            return False
        file = read_users(path, HashForm())
        hashing = self._settings.auth.hashing
        cost = Argon2Cost(hashing.memory >> 10, hashing.passes)
        for key in file.device_keys.values():
            editor.add_device_key(key)
        for tenant in file.tenants:
            editor.tenants.add(tenant)
        for entry in hash_entries(file.entries, cost, self._progress):
            editor.users.add(entry.user)
        self._say(f"added {len(file.entries)} users from {path}, which is not needed again: the database has hashes")
        return True

    def _devices(self, editor: Editor, names: Sequence[str]) -> None:
        """Add users with generated secrets, which go to devices.csv; existing users stay as they are."""
        made: dict[str, str] = {}
        for name in dict.fromkeys(names):
            if any(one in name for one in ',"\r\n'):
                raise StoreError(f"The device {name!r} has a comma, a quote or a line break in its name: use user add.")
            if editor.users.get("username", name) is None:
                secret = generate_secret()
                editor.users.add(User("username", name, hash_device_secret(secret, editor.current_device_key())))
                made[name] = secret
        if not made:
            return
        # Within the transaction, so that the database has no secret that could not be written to the file.
        path = self._make_folder("devices", _PRIVATE) / "devices.csv"
        before = _HEADING
        with contextlib.suppress(FileNotFoundError):
            before = _read(path, strip=False)
        # A former secret of such a device opens nothing: the device was removed, or that transaction failed.
        lines = [line for line in before.split("\n") if line == _HEADING or line.partition(",")[0] not in made]
        draft = path.with_name(f".devices.csv.{os.getpid()}")
        lines = [*filter(None, lines), *(f"{name},{secret}" for name, secret in made.items()), ""]
        self._write(draft, "\n".join(lines), _PRIVATE)
        draft.replace(path)
        self._say(f"added {some(made)}: the secrets are in {path}")


def _read(path: Path, *, strip: bool = True) -> str:
    """The file's text. Raises FileNotFoundError, and ConfigError for an unreadable file or, with ``strip``, an empty
    one."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"The file {path} cannot be read: {reason}.") from error
    if strip and not text.strip():
        raise ConfigError(f"The file {path} is empty: remove it to have it made anew.")
    return text.strip() if strip else text
