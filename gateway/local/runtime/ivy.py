"""Running the Ivy inside pyspark: its settings, its proxy and trust, and what its failures mean."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import quoteattr

from config.extras import how_to_install
from gateway.local.runtime.download import STALLED, run_download
from gateway.local.runtime.errors import DownloadError
from gateway.local.runtime.java import Java, argument_file_line, jvm_environment
from gateway.local.runtime.mirror import Mirror, find_mirror
from gateway.local.runtime.trust import trust_store_options

if TYPE_CHECKING:
    from gateway.local.runtime.jar import Jar
    from gateway.local.runtime.progress import Download, ProgressCallback

ARTIFACT_PATTERN = "[organisation]/[artifact]-[revision].[ext]"
_ATTEMPTS = 3  # one connection in some hundreds is cut; what arrived is kept between attempts
_PATIENCE_SECONDS = 45.0  # without a byte: longer than Ivy waits for one answer, shorter than 46 times that
_HOPELESS = 3  # so many connections refused or timed out: the rest will fare no better


def find_ivy() -> Path:
    """The Ivy jar of the installed pyspark. Raises DownloadError when pyspark is not installed."""
    found = importlib.util.find_spec("pyspark")  # finds it without importing it
    if found is not None and found.origin is not None:
        for path in sorted((Path(found.origin).parent / "jars").glob("ivy-2*.jar")):
            return path
    raise DownloadError(
        "The embedded brokers need the extra 'embedded', whose pyspark carries the downloader. To install it: "
        + how_to_install("embedded")
    )


def fetch(jars: Sequence[Jar], staging: Path, java: Java, announce: Download, progress: ProgressCallback) -> None:
    """Fetch ``jars`` into ``staging/cache``; those there already are not fetched again. Raises DownloadError."""
    named = [(jar.organisation, jar.name, jar.version) for jar in jars]
    with ivy_command(java, staging, module_xml(named, transitive=False), find_mirror(jars)) as command:
        for attempt in range(1, _ATTEMPTS + 1):
            status, output = run_download(
                command,
                env=jvm_environment(),
                log=staging / "ivy.log",
                landing=staging / "cache",
                announce=announce,
                progress=progress,
                give_up=_is_hopeless,
                patience_s=_PATIENCE_SECONDS,
            )
            if status == 0:
                return
            if attempt == _ATTEMPTS or _is_hopeless(output):
                raise _failure(output.decode(errors="replace"), staging / "ivy.log")


@contextmanager
def ivy_command(
    java: Java, folder: Path, module: str, mirror: Mirror | None, *, poms: bool = False
) -> Iterator[list[str | Path]]:
    """The command that resolves ``module`` into ``folder/cache``. Its files, which may hold passwords, end with the
    block."""
    settings, options = folder / "settings.xml", folder / "java-options"
    try:
        _write_private(settings, settings_xml(folder / "cache", mirror=mirror, poms=poms))
        _write_private(options, "\n".join(argument_file_line(option) for option in java_options(java, folder)))
        (folder / "ivy.xml").write_text(module)
        yield [java.executable, f"@{options}", "-jar", find_ivy(), "-settings", settings, "-ivy", folder / "ivy.xml"]
    finally:
        settings.unlink(missing_ok=True)
        options.unlink(missing_ok=True)


def settings_xml(cache: Path, *, mirror: Mirror | None, poms: bool = False) -> str:
    """Ivy's settings: one repository in Maven's layout, ``mirror`` or else Ivy's default.

    With ``poms`` false no descriptor is read: a jar's name is all there is to it. Checksum files beside the jars are
    not fetched: our own list has them.
    """
    credentials = root = ""
    if mirror is not None:
        root = f" root={quoteattr(mirror.address)}"
        if mirror.username:
            credentials = (
                f"<credentials realm={quoteattr(mirror.realm)} host={quoteattr(mirror.host)} "
                f"username={quoteattr(mirror.username)} passwd={quoteattr(mirror.password)}/>"
            )
    descriptors = str(poms).lower()
    return f"""<ivysettings>
  <settings defaultResolver="main"/>
  {credentials}
  <caches defaultCacheDir={quoteattr(str(cache))} artifactPattern={quoteattr(ARTIFACT_PATTERN)}/>
  <timeout-constraints>
    <timeout-constraint name="patience" connectionTimeout="10000" readTimeout="30000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="main" m2compatible="true" usepoms="{descriptors}" checksums="" timeoutConstraint="patience"{root}/>
  </resolvers>
</ivysettings>
"""


def java_options(java: Java, directory: Path) -> list[str]:
    """The JVM flags for proxy and trust, from the environment variables every other tool reads."""
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *trust_store_options(java, directory)]
    for scheme in ("http", "https"):
        proxy = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        if not proxy:
            continue
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if parts.hostname is None:
            raise DownloadError(f"{scheme}_proxy names no host; it should look like http://proxy.example:3128.")
        options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
        if parts.username:
            # Ivy answers a proxy's question from these two names, whatever the scheme; Java refuses Basic over
            # CONNECT by default.
            options += [
                f"-Dhttp.proxyUser={unquote(parts.username)}",
                f"-Dhttp.proxyPassword={unquote(parts.password or '')}",
            ]
            options += ["-Djdk.http.auth.tunneling.disabledSchemes="]
    if exceptions := os.environ.get("no_proxy") or os.environ.get("NO_PROXY"):
        hosts = [host.strip().partition(":")[0].lstrip(".") for host in exceptions.split(",") if host.strip()]
        # A name stands for its subdomains too, as in other tools. Java reads this property for https as well.
        options += ["-Dhttp.nonProxyHosts=" + "|".join("*" if host == "*" else f"{host}|*.{host}" for host in hosts)]
    return options


def module_xml(modules: Iterable[Sequence[str]], *, transitive: bool, overrides: Iterable[Sequence[str]] = ()) -> str:
    """A module that depends on ``modules``, each organisation, name and version; ``overrides`` force others'."""
    dependencies = [
        f"<dependency org={quoteattr(organisation)} name={quoteattr(name)} rev={quoteattr(version)} "
        f'transitive="{str(transitive).lower()}" conf="default->default"/>'
        for organisation, name, version in modules
    ]
    dependencies += [
        f"<override org={quoteattr(organisation)} module={quoteattr(name)} rev={quoteattr(version)}/>"
        for organisation, name, version in overrides
    ]
    return f"""<ivy-module version="2.0">
  <info organisation="gateway" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{"".join(dependencies)}</dependencies>
</ivy-module>
"""


def _is_hopeless(output: bytes) -> bool:
    """Whether so much went wrong in the same way that another attempt, or the rest of this one, will fare no better."""
    signs = rb"ConnectException|NoRouteToHost|timed out|PKIX path|requires authentication|not well configured"
    return len(re.findall(signs, output)) >= _HOPELESS or output.endswith(STALLED) or b"No space left" in output


_NETWORK = "is there a network, or is a proxy needed (https_proxy)?"
_CAUSES = (
    ("PKIX|SSLHandshake", "the repository's certificate is not trusted by Java; for a private CA set SSL_CERT_FILE."),
    (
        r"requires authentication|\b407 ",
        "the proxy wants a user name and password: https_proxy=http://user:password@host.",
    ),
    # The second is what Ivy says at once; the first comes in its summary, which an early end does without.
    (r"Host \S+ not found|not well configured", f"the repository's name cannot be resolved: {_NETWORK}"),
    (
        "ConnectException|NoRouteToHost|timed out|nothing arrived any more",
        f"the repository cannot be reached: {_NETWORK}",
    ),
    ("No space left", "the disk is full: free some space, or set GATEWAY_CACHE to a directory on another disk."),
    ("not found", "the repository lacks some of them: is GATEWAY_MAVEN_MIRROR set, and to a mirror of Maven Central?"),
    ("", "the downloader failed."),
)


def _failure(output: str, log: Path) -> DownloadError:
    cause = next(sentence for pattern, sentence in _CAUSES if re.search(pattern, output))
    lines = [line.strip() for line in output.splitlines() if re.search(r"Exception|rror|not found|WARN", line)]
    tail = "\n".join(f"    {line}" for line in lines[-4:])
    return DownloadError(
        f"The jars could not be fetched: {cause} A mirror can be set with GATEWAY_MAVEN_MIRROR. "
        f"What has arrived is kept. (log: {log})" + (f"\n{tail}" if tail else "")
    )


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
