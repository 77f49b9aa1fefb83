"""``/openapi.json``: schemathesis finds nothing wrong, and every body has an example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service_fixtures import build, listening

TOOL = Path(sys.executable).parent / "schemathesis"


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    if not TOOL.exists():
        pytest.skip("needs schemathesis: pip install '.[e2e]'")
    key = "open sesame"  # with one, so that its absence is tested too
    scanline, app = build({"api_key": key})
    with listening(app, lambda: scanline.ready) as url:
        command = [
            str(TOOL), "run", f"{url}/openapi.json", "--generation-deterministic",
            "--max-examples", "10", "--request-timeout", "30", "--no-color",
            # Whether a class exists, or a file is a picture, no schema can say.
            "--exclude-checks", "positive_data_acceptance",
            "--header", f"Authorization: Bearer {key}",
        ]  # fmt: skip
        run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


@pytest.fixture(scope="module")
def schema() -> Any:
    scanline, app = build({"api_key": "x"})
    with listening(app, lambda: scanline.ready) as url:
        return httpx.get(f"{url}/openapi.json").json()


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does(schema: Any) -> None:
    operations = [o for path in schema["paths"].values() for o in path.values()]
    names = [o["operationId"] for o in operations]
    assert len(set(names)) == len(names)
    assert all(o["summary"] and o["description"] and o["tags"] for o in operations)


def test_every_shape_has_an_example(schema: Any) -> None:
    without = {name for name, s in schema["components"]["schemas"].items() if "examples" not in s}
    assert not without


def test_a_server_without_a_key_asks_for_none() -> None:
    scanline, app = build()
    with listening(app, lambda: scanline.ready) as url:
        schema = httpx.get(f"{url}/openapi.json").json()
    assert "securitySchemes" not in schema["components"]
    assert not any("security" in o for path in schema["paths"].values() for o in path.values())


def test_a_wrong_method_hears_of_all_the_right_ones() -> None:
    scanline, app = build()
    with listening(app, lambda: scanline.ready) as url:
        reply = httpx.put(f"{url}/v1/generations/x")
        assert reply.status_code == 405
        assert reply.headers["allow"] == "DELETE, GET, HEAD"
