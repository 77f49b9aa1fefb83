"""Layout rules: one-way imports, no cycles, HTTP and engine apart, tests mirror the tree."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

LAYERS = ("kernels", "model", "service")  # each imports only from those before it
VAGUE = ("utils", "helpers", "manager", "handler", "context")  # names that say nothing
MAX_SERVICE_LEVELS = 12


def source_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imported_names(source: str, path: str = "<test>") -> set[str]:
    """Return the full name of every module or object that ``source`` imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} uses a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute | ast.Name)
            and ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            names.add(str(node.args[0].value))
    return names


@functools.cache
def imports_of(path: Path) -> set[str]:
    return imported_names(path.read_text(), str(path))


def top_level(names: set[str]) -> set[str]:
    """Return the top-level packages of imported names."""
    return {name.split(".")[0] for name in names}


def layers_of(names: set[str]) -> set[str]:
    """Return the layers (``kernels``, ``model``, ``service``) among imported names."""
    return {parts[1] for name in names if (parts := name.split("."))[0] == "scanline" and parts[1:]}


def import_graph() -> dict[str, set[str]]:
    """Map each module of the project to the project's modules that it imports."""
    files = {}
    for path in (path for layer in LAYERS for path in source_files(layer)):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(("scanline", *parts)).removesuffix(".__init__")] = path
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        found = {n if n in files else n.rpartition(".")[0] for n in imports_of(path)}
        graph[name] = (found & set(files)) - {name}
    return graph


def package_graph(graph: dict[str, set[str]], layer: str) -> dict[str, set[str]]:
    """Collapse a layer's modules to its direct packages and modules."""
    prefix = f"scanline.{layer}."
    packages: dict[str, set[str]] = {}
    for module, imports in graph.items():
        if module.startswith(prefix):
            name = module.removeprefix(prefix).split(".")[0]
            targets = {n.removeprefix(prefix).split(".")[0] for n in imports if prefix in n}
            packages[name] = packages.get(name, set()) | (targets - {name})
    return packages


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """Return each node's level above the nodes that import nothing; fail on a cycle."""
    done: dict[str, int] = {}

    def level(node: str, path: tuple[str, ...] = ()) -> int:
        assert node not in path, f"import cycle: {' → '.join((*path, node))}"
        if node not in done:
            done[node] = 1 + max((level(n, (*path, node)) for n in graph[node]), default=-1)
        return done[node]

    for node in graph:
        level(node)
    return done


def test_import_reader_finds_nested_and_dynamic_imports() -> None:
    source = (
        "import a, b.c\nfrom d import e\ndef f():\n    from g.h import i\n    import j as k\n"
        "if x:\n    import_module('l.m')\n"
    )
    assert top_level(imported_names(source)) == {"a", "b", "d", "g", "j", "l"}
    names = imported_names("import scanline.model.config\nfrom scanline.service import app")
    assert layers_of(names) == {"model", "service"}


def test_kernels_import_only_torch_triton_and_numpy() -> None:
    allowed = {"torch", "triton", "numpy", "scanline", *sys.stdlib_module_names}
    files = source_files("kernels")
    assert len(files) > 1
    for path in files:
        assert top_level(imports_of(path)) <= allowed, path


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer: str) -> None:
    above = {*LAYERS[LAYERS.index(layer) + 1 :], "tests"}
    files = source_files(layer)
    assert len(files) > 1
    for path in files:
        names = imports_of(path)
        assert not (layers_of(names) | top_level(names)) & above, path


def test_no_module_is_part_of_an_import_cycle() -> None:
    graph = import_graph()
    assert len(graph) > 50
    levels(graph)
    for layer in LAYERS:
        levels(package_graph(graph, layer))


def test_a_cycle_is_reported() -> None:
    with pytest.raises(AssertionError, match="a → b → a"):
        levels({"a": {"b"}, "b": {"a"}})


def test_the_service_has_few_import_levels() -> None:
    found = levels(package_graph(import_graph(), "service"))
    assert max(found.values()) + 1 <= MAX_SERVICE_LEVELS


WEB_PACKAGES = {"fastapi", "starlette", "uvicorn", "pydantic", "orjson"}


@pytest.mark.parametrize(
    ("folder", "packages", "modules"),
    [
        ("service/engine", WEB_PACKAGES, ("scanline.service.http", "scanline.service.api")),
        (
            "service/http",
            {"torch", "numpy", "PIL"},
            ("scanline.model", "scanline.kernels", "scanline.service.engine",
             "scanline.service.api", "scanline.service.images"),
        ),
        ("kernels/attention", set[str](), ("scanline.kernels.cuda", "scanline.kernels.native")),
    ],
)  # fmt: skip
def test_a_package_does_not_know(folder: str, packages: set[str], modules: tuple[str, ...]) -> None:
    """The engine knows no HTTP, HTTP knows no images or queues, definitions know no backends."""
    for path in source_files(folder):
        names = imports_of(path)
        assert not top_level(names) & packages, path
        assert not [
            name for name in names if f"{name}.".startswith(tuple(f"{m}." for m in modules))
        ], path


def test_no_file_has_a_vague_name() -> None:
    vague = {word.rstrip("s") for word in VAGUE}
    for folder in LAYERS:
        for path in (ROOT / folder).rglob("*.*"):
            words = path.stem.lower().replace("-", "_").split("_")
            assert not {word.rstrip("s") for word in words} & vague, path


def test_the_tests_mirror_the_tree() -> None:
    """Each folder of tests below a layer is named after a package or module of that layer."""
    for layer in LAYERS:
        for folder in (path for path in (ROOT / "tests" / layer).rglob("*") if path.is_dir()):
            source = ROOT / folder.relative_to(ROOT / "tests")
            if folder.name != "__pycache__":
                assert source.is_dir() or source.with_suffix(".py").is_file(), folder
