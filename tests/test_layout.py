"""The layout's rules: imports point one way, and no file is named after nothing."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

LAYERS = ("kernels", "model", "service")
VAGUE = ("utils", "helpers", "manager", "handler", "context")


def modules(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py"))


def imported(source: str, path: str = "<test>") -> set[str]:
    """Give every module that the source imports, anywhere in it, by its full name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
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


def roots(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def own(names: set[str]) -> set[str]:
    """Give the package's own folders among the imported names."""
    return {parts[1] for name in names if (parts := name.split("."))[0] == "scanline" and parts[1:]}


def imports_of(path: Path) -> set[str]:
    return imported(path.read_text(), str(path))


def test_the_reader_of_imports_sees_them_all() -> None:
    source = (
        "import a, b.c\nfrom d import e\ndef f():\n    from g.h import i\n    import j as k\n"
        "if x:\n    import_module('l.m')\n"
    )
    assert roots(imported(source)) == {"a", "b", "d", "g", "j", "l"}
    assert own(imported("import scanline.model.config\nfrom scanline.service import app")) == {
        "model", "service",
    }  # fmt: skip


@pytest.mark.parametrize("folder", ["kernels", "model"])
def test_there_is_something_to_check(folder: str) -> None:
    assert len(modules(folder)) > 1


def test_kernels_import_torch_triton_and_numpy_only() -> None:
    allowed = {"torch", "triton", "numpy", "scanline", *sys.stdlib_module_names}
    for path in modules("kernels"):
        assert roots(imports_of(path)) <= allowed, path


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer: str) -> None:
    above = {*LAYERS[LAYERS.index(layer) + 1 :], "tests"}
    for path in modules(layer):
        names = imports_of(path)
        assert not (own(names) | roots(names)) & above, path


@pytest.mark.parametrize(
    ("file", "unknown"),
    [
        (
            "service/engine/engine.py",
            {"fastapi", "starlette", "uvicorn", "pydantic", "json", "orjson"},
        ),
        (
            "service/engine/queue.py",
            {"fastapi", "starlette", "uvicorn", "pydantic", "json", "orjson"},
        ),
        ("service/app.py", {"torch", "triton"}),
    ],
)
def test_engine_knows_no_http_and_app_no_torch(file: str, unknown: set[str]) -> None:
    assert not roots(imports_of(ROOT / file)) & unknown


def test_no_file_is_named_after_nothing() -> None:
    for folder in (*LAYERS, "tests"):
        for path in (ROOT / folder).rglob("*.*"):
            words = path.stem.lower().replace("-", "_").split("_")
            assert not {w.rstrip("s") for w in words} & {v.rstrip("s") for v in VAGUE}, path


# --- the picture in docs/architecture.md
# -------------------------------------------------------------

# A folder is one box, but for files that stand on the other side of another folder.
APART = "kernels/cuda/attention_bench"


def names_of_modules() -> dict[str, Path]:
    """Give every module by its full name."""
    found = {}
    for path in (path for layer in LAYERS for path in modules(layer)):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(("scanline", *parts)).removesuffix(".__init__")] = path
    return found


def imports_between_modules() -> dict[str, set[str]]:
    """Give, for every module, the modules of the project that it imports."""
    known = names_of_modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        found = {n if n in known else n.rpartition(".")[0] for n in imports_of(path)}
        graph[name] = (found & set(known)) - {name}
    return graph


def heights(graph: dict[str, set[str]]) -> dict[str, int]:
    """Give how high each node stands above those that import nothing; fails on a circle."""
    done: dict[str, int] = {}

    def height(node: str, above: tuple[str, ...] = ()) -> int:
        assert node not in above, f"imports in a circle: {' → '.join((*above, node))}"
        if node not in done:
            done[node] = 1 + max((height(n, (*above, node)) for n in graph[node]), default=-1)
        return done[node]

    for node in graph:
        height(node)
    return done


def box(module: str) -> str:
    """Give the box of a module: the file or folder that it is in, of one of the layers."""
    path = module.removeprefix("scanline.").replace(".", "/")
    return path if path in APART else "/".join(path.split("/")[:2])


def rows_of_boxes() -> dict[str, list[str]]:
    """Work the picture out: each layer's rows from the top, boxes in the order of their names."""
    graph: dict[str, set[str]] = {}
    for module, imports in imports_between_modules().items():
        mine = box(module)
        if "/" in mine:  # rather than a layer's own package
            layer = mine.split("/")[0]
            others = {box(name) for name in imports if box(name).startswith(f"{layer}/")} - {mine}
            graph[mine] = graph.get(mine, set()) | others
    rows: dict[str, list[list[str]]] = {}
    for name, height in heights(graph).items():
        layer, _, rest = name.partition("/")
        levels = rows.setdefault(layer, [])
        levels.extend([] for _ in range(height + 1 - len(levels)))
        levels[height].append(rest)
    return {
        layer: ["  ".join(sorted(level)) for level in reversed(rows[layer])]
        for layer in reversed(LAYERS)
    }


def picture() -> str:
    """Draw the rows as docs/architecture.md has them."""
    rows = rows_of_boxes()
    width = max(len(row) for layer in rows.values() for row in layer)
    lines = []
    for layer, levels in rows.items():
        lines.append(f"┌─ {layer} ".ljust(width + 3, "─") + "┐")
        lines += [f"│ {level.ljust(width)} │" for level in levels]
        lines.append("└" + "─" * (width + 2) + "┘")
        lines.append("↓".center(width + 4).rstrip())
    return "\n".join(lines[:-1])


def test_no_module_imports_in_a_circle() -> None:
    graph = imports_between_modules()
    assert len(graph) > 50
    heights(graph)


def test_a_circle_would_be_found() -> None:
    with pytest.raises(AssertionError, match="a → b → a"):
        heights({"a": {"b"}, "b": {"a"}})


def test_the_picture_shows_the_imports_that_there_are() -> None:
    drawn = (ROOT / "docs/architecture.md").read_text()
    assert f"```\n{picture()}\n```" in drawn, f"the imports are now:\n{picture()}"
