"""A real OpenLDAP server: plain with StartTLS, and TLS from the first byte."""

import base64
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.programs import find
from tests.servers.loopback import LoopbackServer

PASSWORD = "ld-Secret-7734"
SUFFIX = "dc=example,dc=org"
PEOPLE = f"ou=people,{SUFFIX}"
SEARCHER = f"cn=searcher,{SUFFIX}"
LIMITED = f"cn=limited,{SUFFIX}"
_MANAGER = f"cn=manager,{SUFFIX}"


class Slapd(LoopbackServer):
    """``SEARCHER`` with ``PASSWORD`` may search below ``PEOPLE``, and ``LIMITED`` sees one entry of a search; users may
    read their own entry, nobody else's, and anonymous clients nothing. The ``uid`` of "shy" cannot be read, nor
    anything of "mute"."""

    package: ClassVar[str] = "slapd"
    account: ClassVar[str | None] = "openldap"
    ports: ClassVar[int] = 2
    ready: ClassVar[re.Pattern[bytes]] = re.compile(rb"slapd starting")

    @property
    def tls_port(self) -> int:
        return self._ports.ports[1]

    def _prepare(self) -> None:
        self._binary = find("slapd", self.package)
        self._add, self._delete = find("ldapadd", "ldap-utils"), find("ldapdelete", "ldap-utils")
        (self.directory / "data").mkdir()
        schemas = "".join(f"include /etc/ldap/schema/{name}.schema\n" for name in ("core", "cosine", "inetorgperson"))
        (self.directory / "slapd.conf").write_text(
            f"{schemas}"
            "modulepath /usr/lib/ldap\nmoduleload back_mdb\n"
            f"pidfile {self.directory}/slapd.pid\nargsfile {self.directory}/slapd.args\n"
            f"TLSCACertificateFile {self.authority.ca_file}\n"
            f"TLSCertificateFile {self.certificate.certificate}\nTLSCertificateKeyFile {self.certificate.key}\n"
            "TLSVerifyClient never\n"
            f'database mdb\nsuffix "{SUFFIX}"\nrootdn "{_MANAGER}"\nrootpw {PASSWORD}\n'
            f"directory {self.directory}/data\nmaxsize 67108864\ndbnosync\nindex uid eq\n"
            "access to attrs=userPassword by anonymous auth by * none\n"
            f'limits dn.exact="{LIMITED}" size.soft=1\n'
            'access to dn.regex="^uid=shy," attrs=uid by * search\n'
            'access to dn.regex="^uid=mute," attrs=entry by * search\n'
            f'access to * by dn.exact="{SEARCHER}" read by dn.exact="{LIMITED}" read by self read by * none\n'
        )
        self.hand_over()

    def _command(self) -> list[str | Path]:
        listeners = f"ldap://127.0.0.1:{self.port} ldaps://127.0.0.1:{self.tls_port}"
        return [self._binary, "-f", self.directory / "slapd.conf", "-h", listeners, "-d", "stats"]

    def create(self) -> None:
        """The tree."""
        self.add(SUFFIX, {"objectClass": ["dcObject", "organization"], "dc": ["example"], "o": ["example"]})
        self.add(PEOPLE, {"objectClass": ["organizationalUnit"], "ou": ["people"]})
        for name in (SEARCHER, LIMITED):
            self.add(
                name,
                {
                    "objectClass": ["organizationalRole", "simpleSecurityObject"],
                    "cn": [name.partition(",")[0].removeprefix("cn=")],
                    "userPassword": [PASSWORD],
                },
            )

    def add(self, name: str, attributes: Mapping[str, Sequence[str]]) -> None:
        """Add an entry as the directory's manager. Texts are written in base64, so they may hold anything."""
        lines = [f"dn:: {_base64(name)}"]
        lines += [f"{key}:: {_base64(value)}" for key, values in attributes.items() for value in values]
        self._edit(self._add, "\n".join(lines) + "\n")

    def remove(self, name: str) -> None:
        """Remove an entry, if it is there."""
        self._edit(self._delete, f"{name}\n", 32)

    def _edit(self, program: str, lines: str, *also: int) -> None:
        """Run a program of ldap-utils; it may end with 0 or one of ``also``."""
        ran = subprocess.run(
            [program, "-x", "-H", f"ldap://127.0.0.1:{self.port}", "-D", _MANAGER, "-w", PASSWORD],
            input=lines,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ran.returncode in {0, *also}, f"{program} {lines!r}: {ran.stdout}{ran.stderr}"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
