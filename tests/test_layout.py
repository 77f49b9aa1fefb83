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
        ("service/engine.py", {"fastapi", "starlette", "uvicorn", "pydantic", "json", "orjson"}),
        ("service/queue.py", {"fastapi", "starlette", "uvicorn", "pydantic", "json", "orjson"}),
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
