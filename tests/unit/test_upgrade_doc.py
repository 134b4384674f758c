"""docs/upgrade.md gives the formats on disk that this version writes."""

import re
from pathlib import Path

import auth.store.file
import bridge.spool.index
import bridge.spool.segments
import gateway.data_dir.meta_properties

PAGE = (Path(__file__).parents[2] / "docs/upgrade.md").read_text(encoding="utf-8")


def test_the_formats_are_those_that_are_written() -> None:
    assert bridge.spool.index.FORMAT == bridge.spool.segments.FORMAT
    assert dict(re.findall(r"^\| ([^|]+) \| (\d+) \|", PAGE, re.MULTILINE)) == {
        "`data_dir/meta.properties`": str(gateway.data_dir.meta_properties.FORMAT_VERSION),
        "the spool": str(bridge.spool.segments.FORMAT),
        "the access service's database": str(auth.store.file.FORMAT),
    }
