"""No modules of the product import each other in a circle, imports for types included."""

from __future__ import annotations

import graphlib

import grimp

PACKAGES = ("gateway", "auth", "bridge", "config", "streaming")
# A batch, its slot, its partition's queue and its accumulator know one another: they count as one module here.
ONE = {"bridge.produce.accumulator", "bridge.produce.batch", "bridge.produce.dead_letter", "bridge.produce.partitions"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports: dict[str, set[str]] = {}
    for module in graph.modules:
        imported = {_counted(other) for other in graph.find_modules_directly_imported_by(module)}
        imports.setdefault(_counted(module), set()).update(imported - {_counted(module)})
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def _counted(module: str) -> str:
    return "bridge.produce.accumulator" if module in ONE else module
