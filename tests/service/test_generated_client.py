"""Tests of a client that ``openapi-python-client`` generates from the schema."""

from __future__ import annotations

import base64
import importlib
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.fixtures import GREY, build, decode_png, encode, listening, random_picture
from tests.sse_client import Event, parse_sse, rebuild

TOOL = Path(sys.executable).parent / "openapi-python-client"
KEY = "open sesame"


class GeneratedClient:
    """The generated package, and its client of a server."""

    def __init__(self, url: str) -> None:
        self.client = self.module("").AuthenticatedClient(base_url=url, token=KEY)
        self.models, self.types = self.module(".models"), self.module(".types")

    def module(self, name: str) -> Any:
        return importlib.import_module(f"generated_client{name}")

    def call(self, operation: str, *arguments: Any, **fields: Any) -> Any:
        """Call an operation of the tag ``draw``."""
        module = self.module(f".api.draw.{operation}")
        return module.sync_detailed(*arguments, client=self.client, **fields)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GeneratedClient]:
    if not TOOL.exists():
        pytest.skip("needs openapi-python-client: pip install '.[e2e]'")
    folder = tmp_path_factory.mktemp("generated")
    app_state, app = build({"api_key": KEY})
    with listening(app, lambda: app_state.ready) as url:
        command = [str(TOOL), "generate", "--url", f"{url}/openapi.json", "--meta", "none",
                   "--output-path", str(folder / "generated_client")]  # fmt: skip
        subprocess.run(command, capture_output=True, check=True, cwd=folder)
        sys.path.insert(0, str(folder))
        try:
            client = GeneratedClient(url)
            with client.client:
                yield client
        finally:
            sys.path.remove(str(folder))
            for name in [name for name in sys.modules if name.startswith("generated_client")]:
                del sys.modules[name]


def test_samples(generated: GeneratedClient) -> None:
    reply = generated.call(
        "create_samples", body=generated.models.SampleRequest(n=2, seed=3, label="one")
    )
    assert reply.status_code == 200
    assert isinstance(reply.parsed, generated.models.GenerationReply)
    assert [image.seed for image in reply.parsed.images] == [3, 4]
    assert [image.label for image in reply.parsed.images] == ["one"] * 2
    for image in reply.parsed.images:
        decode_png(base64.b64decode(image.png), GREY)
    again = generated.call("get_generation", reply.parsed.id)
    assert again.parsed == reply.parsed
    wrong = generated.call("create_samples", body=generated.models.SampleRequest(label="toad"))
    assert isinstance(wrong.parsed, generated.models.ErrorReply)
    assert wrong.parsed.error.code == "unknown_class"


def test_background_samples(generated: GeneratedClient) -> None:
    body = generated.models.SampleRequest(seed=3)
    reply = generated.call("create_samples", body=body, prefer="respond-async", idempotency_key="a")
    assert reply.status_code == 202
    again = generated.call("create_samples", body=body, idempotency_key="a")
    assert again.parsed.id == reply.parsed.id


def test_completions(generated: GeneratedClient) -> None:
    picture = random_picture()
    image = generated.types.File(io.BytesIO(encode(picture)), "picture.png", "image/png")
    values = generated.models.CompletionFormOutput.VALUES
    form = generated.models.CompletionForm(image=image, known_rows=2, n=3, output=values)
    reply = generated.call("create_completions", body=form)
    assert reply.status_code == 200, reply.content
    known = np.asarray(picture).ravel()[:10].tolist()
    for drawn in reply.parsed.images:
        assert drawn.values[:10] == known


def test_streams(generated: GeneratedClient) -> None:
    body = generated.models.SampleRequest(n=2, seed=3, stream=True).to_dict()
    http = generated.client.get_httpx_client()
    with http.stream("POST", "/v1/samples", json=body) as reply:
        assert reply.status_code == 200
        events: list[Event] = parse_sse(reply.read())
    shapes = {
        "started": generated.models.Started, "pixels": generated.models.Pixels,
        "image": generated.models.PngImage, "completed": generated.models.Completed,
    }  # fmt: skip
    read = [shapes[event.name].from_dict(event.data) for event in events]
    assert [one.to_dict() for one in read] == [event.data for event in events]
    plain = generated.call(
        "create_samples", body=generated.models.SampleRequest(n=2, seed=3)
    ).parsed
    drawn = rebuild(events, GREY)
    for image in plain.images:
        assert np.array_equal(drawn[image.index], decode_png(base64.b64decode(image.png), GREY))
