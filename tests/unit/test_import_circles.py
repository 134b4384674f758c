"""No modules of the product import each other in a circle, imports for types included."""

import graphlib

import grimp

PACKAGES = ("gateway", "auth", "bridge", "config", "streaming")


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle
