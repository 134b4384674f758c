"""The JVM's class-data archive, with a real JVM: Ivy, which says its version and ends."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.local.runtime.ivy import find_ivy
from gateway.local.runtime.java import ensure_java
from streaming.runtime.class_data import ClassData


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    """A part of the class path that a test may change; the JVM does not see it."""
    jar = tmp_path / "a.jar"
    jar.write_text("a")
    return jar


def class_data(jar: Path) -> ClassData:
    return ClassData(jar.parent / "classes", ensure_java().home, [find_ivy(), jar])


def archives(jar: Path) -> list[Path]:
    return list((jar.parent / "classes").glob("*.jsa"))


def run(flags: Sequence[str]) -> str:
    """What a JVM with these flags says on standard output."""
    java = [str(ensure_java().executable), "-XX:+UseSerialGC", *flags]
    words = [*java, "-cp", str(find_ivy()), "org.apache.ivy.Main", "-version"]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout


def archived(flags: Sequence[str]) -> bool:
    """Whether a JVM with these flags takes a class of Ivy's out of an archive."""
    said = run([*flags, "-Xlog:class+load"])
    assert "org.apache.ivy.Main source: " in said
    return "org.apache.ivy.Main source: shared objects file (top)" in said


def record(jar: Path) -> None:
    first = class_data(jar)
    run(first.flags())
    first.end()


def test_the_first_run_writes_it_and_later_ones_map_it(jar: Path) -> None:
    first = class_data(jar)
    assert run(first.flags()).startswith("Apache Ivy"), "and of what it cannot archive it says nothing"
    assert first.recording
    first.end()
    assert not first.recording
    (archive,) = archives(jar)
    later = class_data(jar)
    assert later.use_flags() == later.flags() == [f"-XX:SharedArchiveFile={archive}"]
    assert not later.recording
    assert archived(later.flags())
    assert not archived([])


def test_one_writes_it_and_those_beside_it_start_without(jar: Path) -> None:
    first, second = class_data(jar), class_data(jar)
    flags = first.flags()
    assert flags
    assert first.flags() == [], "for one JVM"
    assert second.flags() == []
    run(flags)
    second.end()
    assert first.recording
    assert archives(jar) == []
    first.end()
    assert archived(second.flags())
    assert not second.recording


def test_a_changed_class_path_has_another_which_replaces_it(jar: Path) -> None:
    record(jar)
    old = archives(jar)
    jar.write_text("ab")
    assert class_data(jar).use_flags() == []
    record(jar)
    assert len(archives(jar)) == 1
    assert archives(jar) != old
    jar.with_name("b.jar").touch()
    assert class_data(jar.with_name("b.jar")).use_flags() == []


def test_what_a_killed_jvm_has_written_is_not_kept(jar: Path) -> None:
    killed = class_data(jar)
    draft = Path(killed.flags()[-1].partition("=")[2])
    draft.write_bytes(bytes(5000))  # its beginning comes last
    killed.end()
    assert (archives(jar), draft.exists()) == ([], False)


def test_a_damaged_one_is_not_mapped(jar: Path) -> None:
    record(jar)
    (archive,) = archives(jar)
    size = archive.stat().st_size
    archive.chmod(0o644)
    with archive.open("r+b") as file:
        file.write(b"no archive")
    assert not archived(class_data(jar).use_flags()), "the JVM looks at its beginning"
    with archive.open("r+b") as file:
        file.truncate(size // 2)
    assert class_data(jar).use_flags() == [], "one that was cut short would crash it"
    record(jar)
    assert len(archives(jar)) == 1
    assert archived(class_data(jar).use_flags())


def test_where_nothing_can_be_written_there_is_none(jar: Path) -> None:
    (jar.parent / "classes").write_text("a file where the folder would be")
    none = class_data(jar)
    assert (none.flags(), none.recording) == ([], False)
    none.end()
