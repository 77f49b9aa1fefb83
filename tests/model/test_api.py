"""Python API: the same bytes as the server, and argument checks."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import scanline.model
from scanline.model import complete, draw, score
from scanline.model.api import ModelSource, generate, resolve_model
from scanline.model.checkpoint import Checkpoint, CheckpointError, SamplingDefaults
from scanline.model.decoders.factory import create_decoder
from scanline.model.pixel_bits import pixel_bits
from scanline.model.sampling import SamplingParams
from scanline.service.engine.generation import GenerationSpec
from tests.conftest import (
    assert_close,
    random_canvas,
    random_network,
    tiny_config,
)
from tests.model.decoders.conftest import backend as backend  # the fixture
from tests.model.decoders.fixtures import PRECISION, on_backends
from tests.service.engine.fixtures import drawn, running
from tests.service.fixtures import COLOUR, GREY, save_tiny, tiny_model

SHAPE = (GREY.height, GREY.width, GREY.channels)


def checkpoint(**defaults: float) -> Checkpoint:
    return Checkpoint("tiny", tiny_model(), {"defaults": defaults})


def draw_with_engine(spec: GenerationSpec, backend: str) -> NDArray[np.uint8]:
    """Draw with an engine, several images at once."""
    with running(create_decoder(tiny_model(), 6, backend)) as engine:
        generation = engine.queue.submit(spec)
        with engine.queue.reading(generation):
            return np.stack(drawn(generation)).reshape(-1, *SHAPE)


FIELDS: dict[str, dict[str, Any]] = {
    "neutral": {},
    "labelled": {"label": 2},
    "guided": {"label": 1, "guidance": 2.5, "top_p": 0.9, "temperature": 0.8},
    "greedy": {"temperature": 0.0},
}


@on_backends("fields", FIELDS, ["guided"])
def test_draw_equals_the_engine(fields: dict[str, Any], backend: str) -> None:
    expected = draw_with_engine(
        GenerationSpec(n=5, seed=2**64 - 2, sampling=SamplingParams(**fields)), backend
    )
    drawn = draw(tiny_model(), 5, seed=2**64 - 2, slots=4, backend=backend, **fields)
    assert drawn.dtype == np.uint8
    np.testing.assert_array_equal(drawn, expected)
    for slots in (2, 64):
        other = draw(tiny_model(), 5, seed=2**64 - 2, slots=slots, backend=backend, **fields)
        np.testing.assert_array_equal(other, expected)


def test_random_label_equals_the_engine() -> None:
    spec = GenerationSpec(n=6, seed=5, sampling=SamplingParams(random_label=True, guidance=2.0))
    expected = draw_with_engine(spec, "native")
    drawn = draw(tiny_model(), 6, seed=5, label="Random", guidance=2.0, backend="native")
    np.testing.assert_array_equal(drawn, expected)


def test_complete_equals_the_engine(backend: str) -> None:
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, SHAPE, np.uint8)
    known = rng.random(SHAPE[:2]) < 0.4
    known[:2] = True
    spec = GenerationSpec(
        n=3, seed=4, canvas=picture.reshape(-1, 1), known=known.reshape(-1),
        sampling=SamplingParams(label=1, guidance=1.5),
    )  # fmt: skip
    drawn = complete(
        tiny_model(), picture, known, 3, seed=4, label="one", guidance=1.5, backend=backend
    )
    np.testing.assert_array_equal(drawn, draw_with_engine(spec, backend))
    assert (drawn[:, known] == picture[known]).all()
    assert len({way.tobytes() for way in drawn}) == 3


@pytest.mark.parametrize("fields", [{}, {"label": 1, "guidance": 2.0}], ids=str)
def test_complete_with_particles_equals_the_engine(fields: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    picture, known = rng.integers(0, 256, SHAPE, np.uint8), rng.random(SHAPE[:2]) < 0.4
    spec = GenerationSpec(
        n=4, seed=4, canvas=picture.reshape(-1, 1), known=known.reshape(-1),
        sampling=SamplingParams(particles=3, **fields),
    )  # fmt: skip
    expected = draw_with_engine(spec, "native")
    for slots in (6, 13, 64):
        drawn = complete(
            tiny_model(), picture, known, 4, seed=4, particles=3, slots=slots, backend="native",
            **fields,
        )  # fmt: skip
        np.testing.assert_array_equal(drawn, expected)
    assert (expected[:, known] == picture[known]).all()


def test_images_can_have_different_labels() -> None:
    mixed = draw(tiny_model(), 4, label=["a frog", None, 1, "2"])
    numbers = np.array([2, 0, 1, 2])
    for image, label in enumerate([2, None, 1, 2]):
        alone = draw(tiny_model(), 1, seed=image, label=label)
        np.testing.assert_array_equal(mixed[image], alone[0])
    np.testing.assert_array_equal(
        draw(tiny_model(), 4, label=numbers),
        draw(tiny_model(), 4, label=numbers.tolist()),
    )


def test_sampling_defaults_of_the_checkpoint_apply() -> None:
    own, plain = checkpoint(guidance=3.0, top_p=0.7), checkpoint()
    assert own.defaults == SamplingDefaults(3.0, 0.7)

    def of(model: ModelSource, **fields: Any) -> bytes:
        return draw(model, 4, **fields).tobytes()

    assert of(own, label=1) == of(plain, label=1, guidance=3.0, top_p=0.7)
    assert of(own) == of(plain, top_p=0.7)
    assert (
        of(own, label=1, guidance=1.0, top_p=1.0) == of(plain, label=1) == of(tiny_model(), label=1)
    )
    some = draw(own, 2, label=[1, None])
    assert of(own, label=1).startswith(some[0].tobytes())
    assert of(own)[some[0].nbytes :].startswith(some[1].tobytes())
    assert len({of(own, label=1), of(own, label=1, top_p=1.0), of(plain, label=1)}) == 3


def test_score_equals_the_network() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (20, *SHAPE), np.uint8)
    labels = [None, 0, "one", "a frog"] * 5
    bits = score(tiny_model(), pictures, labels)
    assert bits.dtype == np.float64
    for image, number in enumerate([-1, 0, 1, 2] * 5):
        exact = pixel_bits(tiny_model(), pictures[image].reshape(1, -1, 1), number).sum()
        assert bits[image] == pytest.approx(exact / GREY.dims, rel=1e-5)
    np.testing.assert_allclose(score(tiny_model(), pictures, 1)[2::4], bits[2::4], rtol=1e-5)
    assert score(tiny_model(), pictures[:0]).shape == (0,)


def test_score_ignores_the_callers_autocast() -> None:
    model = tiny_model()
    pictures = draw(model, 2)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = score(model, pictures)
    assert np.array_equal(rounded, score(model, pictures))


def test_score_of_a_network_in_training_mode_is_reproducible() -> None:
    """LSH attention draws new hash functions in every pass of a training."""
    network = random_network(tiny_config(attention="lsh-1", lsh_chunk=4))
    pictures = random_canvas(network.config, 2).view(2, 5, 4, 1).numpy()
    expected = score(network, pictures)
    assert np.array_equal(score(network.train(), pictures), expected)


def test_generate_returns_bits_per_dim(backend: str) -> None:
    seen: list[int] = []
    generated = generate(
        tiny_model(), 5, label=2, guidance=2.0, slots=4, backend=backend, progress=seen.append
    )
    assert seen == [2, 2, 1]
    exact = torch.from_numpy(score(tiny_model(), generated.images, 2))
    assert_close(torch.from_numpy(generated.bits_per_dim), exact, PRECISION[backend])
    known = np.ones(SHAPE[:2], np.bool_)
    again = generate(tiny_model(), 5, label=2, given=generated.images, known=known, backend=backend)
    np.testing.assert_array_equal(again.images, generated.images)
    assert_close(torch.from_numpy(again.bits_per_dim), exact, PRECISION[backend])


def test_given_needs_known_and_one_image_each() -> None:
    """``given`` without ``known``, or the reverse, is rejected instead of ignored."""
    given = np.zeros((2, GREY.height, GREY.width, 1), np.uint8)
    known = np.ones((GREY.height, GREY.width), np.bool_)
    for fields in ({"given": given}, {"known": known}):
        with pytest.raises(ValueError, match="given and known must be passed together"):
            generate(tiny_model(), 2, **fields)
    for n in (1, 3):
        with pytest.raises(ValueError, match=f"n = {n} images, not 2"):
            generate(tiny_model(), n, given=given, known=known)


def test_model_sources(tmp_path: Path) -> None:
    path = save_tiny(tmp_path)
    one = draw(tiny_model(), 2)
    np.testing.assert_array_equal(draw(path, 2), one)
    np.testing.assert_array_equal(draw(checkpoint(), 2), one)
    assert draw("mnist", 1, label=7).shape == (1, 28, 28, 1)
    with pytest.raises(ValueError, match="no model 'nothing'"):
        draw("nothing", 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 0}, "at least 1"),
        ({"seed": -1}, "seed must be"),
        ({"seed": 2**64}, "seed must be"),
        ({"label": "a dog"}, "no class "),
        ({"label": [0, 1]}, "one for each of the 3"),
        ({"label": -1}, "no class "),
        ({"label": [0, 1, 1.5]}, "name or number of a class, not 1.5"),
        ({"label": 1.5}, "name or number of a class, not 1.5"),
        ({"label": True}, "name or number of a class, not True"),
        ({"temperature": -1.0}, "temperature must be 0 to 2"),
        ({"top_p": 0.0}, "top_p"),
        ({"guidance": 2.0}, "guidance needs a label"),
        ({"guidance": 11.0, "label": 1}, "guidance must be 0 to 10"),
        ({"guidance": 2.0, "label": 1, "slots": 1}, "takes 2 slots"),
        ({"slots": 0}, "takes 1 slots"),
        ({"backend": "other"}, "backend must be"),
    ],
    ids=str,
)
def test_invalid_arguments_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(tiny_model(), **dict[str, Any](n=3) | fields)


def test_any_integer_and_array_type_is_accepted() -> None:
    model = tiny_model()
    drawn = draw(model, 3, seed=5, label=1)
    for label in (np.int64(1), np.array(1), np.array([1, 1, 1], np.int8), [np.int64(1)] * 3):
        same = draw(model, np.int64(3), seed=np.uint64(5), label=label)  # type: ignore[arg-type]
        assert np.array_equal(same, drawn)
    for labels in (torch.tensor(1), torch.tensor([1, 1, 1])):
        assert np.array_equal(draw(model, 3, seed=5, label=labels), drawn)
    for some in (np.array([1, -1]), torch.tensor([1, -1])):
        assert np.array_equal(draw(model, 2, label=some), draw(model, 2, label=[1, None]))
    bits = score(model, drawn, label=1)
    drawn.flags.writeable = False
    others: list[Any] = [drawn.tolist(), drawn]
    for pictures in (np.asarray(others[0], np.uint8), list(drawn), drawn):
        assert np.array_equal(score(model, pictures, label=1), bits)  # type: ignore[arg-type]
    assert np.array_equal(score(model, drawn[::-1], label=1), bits[::-1])
    known = np.ones(SHAPE[:2], np.bool_)
    known[3:] = False
    ways = complete(model, list(drawn[0]), known.tolist(), 2)  # type: ignore[arg-type]
    assert np.array_equal(ways, complete(model, drawn[0], known, 2))


def test_name_never_refers_to_a_local_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mnist", "own.safetensors"):
        Path(name).touch()
    assert resolve_model("mnist").model.config.classes
    with pytest.raises(ValueError, match=r"pass Path\('own.safetensors'\)"):
        resolve_model("own.safetensors")
    with pytest.raises(CheckpointError, match="there is no model 'other'"):
        resolve_model("other")


def test_wrong_image_shape_or_dtype_is_rejected() -> None:
    right, known = np.zeros(SHAPE, np.uint8), np.ones(SHAPE[:2], np.bool_)
    wrong: list[Any] = [right[..., 0], right[1:], right.astype(np.int64)]
    for picture in wrong:
        with pytest.raises(ValueError, match=r"image must be uint8 \[6, 5, 1\]"):
            complete(tiny_model(), picture, known)
        with pytest.raises(ValueError, match=r"images must be uint8 \[n, 6, 5, 1\]"):
            score(tiny_model(), picture[None])
    with pytest.raises(ValueError, match=r"\[n, 6, 5, 1\] .* not uint8 \[6, 5, 1\]"):
        score(tiny_model(), right)  # not an array of images
    masks: list[Any] = [known[1:], known.astype(np.uint8)]
    for other in masks:
        with pytest.raises(ValueError, match="known must be bool"):
            complete(tiny_model(), right, other)
    with pytest.raises(ValueError, match="no classes"):
        score(tiny_model(COLOUR), np.zeros((1, 4, 3, 3), np.uint8), 1)


def test_package_imports_torch_lazily() -> None:
    """Importing torch's compiler would double the start-up time."""
    code = (
        "import sys, scanline.model.config, scanline.model as m\n"
        "assert 'torch' not in sys.modules\n"
        "assert {'draw', 'complete', 'score'} <= set(dir(m))\n"
        "from scanline.model import *\n"
        "assert draw is m.draw and 'torch' in sys.modules\n"
        "import scanline.service.app\n"
        "score('mnist', draw('mnist', 1, backend='native'))\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with pytest.raises(AttributeError, match="no attribute 'generate'"):
        scanline.model.generate  # type: ignore[attr-defined]  # noqa: B018


def test_class_named_random_takes_precedence() -> None:
    model = tiny_model(dataclasses.replace(GREY, classes=("Random", "one", "two")))
    named, numbered = (draw(model, 6, label=label) for label in ("random", 0))
    np.testing.assert_array_equal(named, numbered)


def test_bits_are_those_of_the_chosen_particle() -> None:
    picture = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    known = np.ones(SHAPE[:2], np.bool_)
    known[2:4, 1:4] = False
    generated = generate(
        tiny_model(), 6, label=1, particles=5, known=known,
        given=np.broadcast_to(picture, (6, *SHAPE)),
    )  # fmt: skip
    exact = torch.from_numpy(score(tiny_model(), generated.images, 1))
    assert_close(torch.from_numpy(generated.bits_per_dim), exact, torch.float32)


FORKED = """
import os, signal, sys
import numpy as np, torch
from scanline.model import draw, score
from scanline.model.checkpoint import load_by_name

torch.set_num_threads(2)
checkpoint = load_by_name(name="mnist")
images = np.zeros((4, 28, 28, 1), np.uint8)

def run():
    return draw(checkpoint, 1, backend="native").tobytes(), score(checkpoint, images)

drawn, bits = run()
child = os.fork()
if child == 0:
    signal.alarm(120)  # ends a child that waits for threads that it does not have
    again, bits_again = run()
    os._exit(again != drawn or not np.allclose(bits, bits_again))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_forked_processes_draw_and_score() -> None:
    """``multiprocessing`` forks by default, and torch's threads do not survive that."""
    subprocess.run([sys.executable, "-c", FORKED], check=True)
