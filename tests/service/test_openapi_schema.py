"""Tests of the OpenAPI schema, with schemathesis and with its own examples."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, build, encode, listening, random_picture, talking_to

TOOL = Path(sys.executable).parent / "schemathesis"


@pytest.mark.slow
def test_schemathesis_finds_no_errors(tmp_path: Path) -> None:
    if not TOOL.exists():
        pytest.skip("needs schemathesis: pip install '.[e2e]'")
    key = "open sesame"  # so that requests without a key are tested too
    app_state, app = build({"api_key": key, "max_images": 8})  # many large images take long
    with listening(app, lambda: app_state.ready) as url:
        command = [
            str(TOOL), "run", f"{url}/openapi.json", "--generation-deterministic",
            "--max-examples", "10", "--request-timeout", "120", "--no-color",
            # A schema cannot express whether a class exists or a file is an image.
            "--exclude-checks", "positive_data_acceptance",
            "--header", f"Authorization: Bearer {key}",
        ]  # fmt: skip
        run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


@pytest.fixture(scope="module")
def schema() -> Any:
    app_state, app = build({"api_key": "x"})
    with listening(app, lambda: app_state.ready) as url:
        return httpx.get(f"{url}/openapi.json", timeout=60).json()


def test_every_operation_has_a_unique_id_and_a_description(schema: Any) -> None:
    operations = [o for path in schema["paths"].values() for o in path.values()]
    names = [o["operationId"] for o in operations]
    assert len(set(names)) == len(names)
    assert all(o["summary"] and o["description"] and o["tags"] for o in operations)
    for operation in operations:
        plain = " ".join(operation["description"].split()).replace("`", "")
        assert plain.startswith(operation["summary"])
        assert "`" not in operation["summary"], "Swagger UI shows a summary as it is"


def test_every_operation_declares_the_parameters_of_its_path(schema: Any) -> None:
    assert {"/v1/generations/{identifier}/events", "/readyz", "/metrics"} < set(schema["paths"])
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            declared = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
            assert declared == set(re.findall(r"{(\w+)}", path))
            assert "HTTPValidationError" not in json.dumps(operation["responses"])


def test_every_reference_resolves(schema: Any) -> None:
    references = set(re.findall(r'"\$ref": "(.*?)"', json.dumps(schema)))
    assert "#/components/schemas/ErrorReply" in references
    assert references <= {
        f"#/components/schemas/{name}" for name in schema["components"]["schemas"]
    }


def test_media_types(schema: Any) -> None:
    form = schema["paths"]["/v1/completions"]["post"]["requestBody"]["content"]
    assert list(form) == ["multipart/form-data"]
    media = schema["paths"]["/v1/samples"]["post"]["responses"]["200"]["content"]
    assert set(media) == {
        "application/json", "image/png", "application/zip", "application/x-npy",
        "text/event-stream",
    }  # fmt: skip


def test_every_model_has_an_example(schema: Any) -> None:
    without = {name for name, s in schema["components"]["schemas"].items() if "examples" not in s}
    assert not without


def test_operation_ids_and_replies(schema: Any) -> None:
    named = {
        operation["operationId"]: set(operation["responses"])
        for path in schema["paths"].values() for operation in path.values()
    }  # fmt: skip
    drawing = {"200", "400", "401", "404", "409", "413", "415", "429", "500", "503"}
    assert named["create_samples"] == drawing | {"202", "406", "422"}
    assert named["create_image"] == named["edit_image"] == drawing | {"422"}
    assert named["list_models"] == {"200", "400", "401", "503"}
    assert named["cancel_generation"] == {"200", "400", "401", "404"}
    assert named["get_generation"] == drawing - {"413", "415", "429"} | {"406"}
    assert named["livez"] == {"200", "503"}


def test_replies_name_their_headers(schema: Any) -> None:
    replies = schema["paths"]["/v1/samples"]["post"]["responses"]
    assert {"X-Request-ID", "X-Generation-ID", "X-Seed"} == set(replies["200"]["headers"])
    assert "Location" in replies["202"]["headers"]
    assert "Retry-After" in replies["429"]["headers"]
    sample = schema["paths"]["/v1/samples/{model}/{seed}.png"]["get"]["responses"]["200"]
    assert {"ETag", "Cache-Control"} <= set(sample["headers"])


def test_streams_name_the_models_of_their_events(schema: Any) -> None:
    seen = set()
    for path in ("/v1/samples", "/v1/images/generations"):
        content = schema["paths"][path]["post"]["responses"]["200"]["content"]
        for event, shape in content["text/event-stream"]["schema"]["x-events"].items():
            for one in shape.get("anyOf", [shape]):
                name = one["$ref"].removeprefix("#/components/schemas/")
                assert schema["components"]["schemas"][name]["type"] == "object"
            seen.add(event)
    assert seen >= {"started", "waiting", "pixels", "image", "completed", "error"}
    assert "image_generation.partial_image" in seen


def test_documented_limits_are_enforced(schema: Any) -> None:
    shapes = schema["components"]["schemas"]
    for name in ("SampleRequest", "CompletionForm", "GenerationsRequest"):
        fields = shapes[name]["properties"]
        count = fields["n"].get("anyOf", [fields["n"]])[0]
        assert (count["minimum"], count["maximum"]) == (1, 256), name
        seed = fields["seed"]["anyOf"][0]
        assert (seed["minimum"], str(seed["maximum"])) == (0, str(2**64 - 1)), name
    sample = schema["paths"]["/v1/samples/{model}/{seed}.png"]["get"]["parameters"]
    (seed,) = (one["schema"] for one in sample if one["name"] == "seed")
    assert (seed["minimum"], str(seed["maximum"])) == (0, str(2**64 - 1))


def test_an_image_in_a_stream_is_png_or_values(schema: Any) -> None:
    content = schema["paths"]["/v1/samples"]["post"]["responses"]["200"]["content"]
    image = content["text/event-stream"]["schema"]["x-events"]["image"]
    names = [one["$ref"].rsplit("/", 1)[1] for one in image["anyOf"]]
    assert names == ["PngImage", "ValuesImage"]


DIGITS = replace(GREY, height=28, width=28, classes=tuple("0123456789"))


def test_every_example_runs(schema: Any) -> None:
    """Uploads and shortened data URLs are replaced by complete images."""
    picture = random_picture(DIGITS).convert("LA")
    picture.putpixel((5, 5), (0, 0))
    png = encode(picture)
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    _, app = build(decoders={"mnist": FakeDecoder(DIGITS, 8)})
    ran = []
    with talking_to(app) as client:
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                for kind, media in operation.get("requestBody", {}).get("content", {}).items():
                    shape = media["schema"]
                    if "$ref" in shape:
                        shape = schema["components"]["schemas"][shape["$ref"].split("/")[-1]]
                    for example in shape["examples"]:
                        if kind == "application/json":
                            text = re.sub(r"data:image/png;base64,[^\"]*", url, json.dumps(example))
                            sent: dict[str, Any] = {"json": json.loads(text)}
                        else:
                            count = (
                                len(example["image"]) if isinstance(example["image"], list) else 1
                            )
                            # Swagger UI sends every field of the form.
                            filled = {
                                name: field.get("example", field.get("default"))
                                for name, field in shape["properties"].items()
                            }
                            del filled["image"]
                            for name in ("mask", "source"):  # no file is chosen
                                filled.pop(name, None)
                            assert all(value is not None for value in filled.values()), filled
                            assert {**filled, **example, "image": ""} == {**filled, "image": ""}
                            sent = {"files": [("image", png)] * count, "data": filled}
                        reply = client.request(method, path, **sent)
                        assert reply.status_code == 200, (path, kind, reply.text)
                        ran.append((path, kind))
    assert len(ran) == len(set(ran)) == 9


def test_a_server_without_keys_documents_none() -> None:
    app_state, app = build()
    with listening(app, lambda: app_state.ready) as url:
        schema = httpx.get(f"{url}/openapi.json", timeout=60).json()
    assert "securitySchemes" not in schema["components"]
    assert not any("security" in o for path in schema["paths"].values() for o in path.values())


def test_a_wrong_method_gets_all_allowed_ones() -> None:
    app_state, app = build()
    with listening(app, lambda: app_state.ready) as url:
        reply = httpx.put(f"{url}/v1/generations/x")
        assert reply.status_code == 405
        assert reply.headers["allow"] == "DELETE, GET, HEAD"
