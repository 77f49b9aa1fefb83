"""Checks of ``scanline serve`` on this machine's device; ``check_service.sh`` starts them.

Each result is printed as soon as it is known, and a failed check does not prevent the next one. The
exit code is 0 if all succeed.
"""

from __future__ import annotations

import argparse
import base64
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from scanline.model.config import PRESETS
from tests.device.served import Served, pixels_of, running_server
from tests.sse_client import Event, parse_sse, rebuild

SMALL, LARGE = MODELS = ("mnist", "cifar10")
BATCH = 250  # images per request; the server accepts 256
MINUTE = 60.0
MAX_APART = 0.1  # bits/dim between float32 and the decoder's products, of a single image
THREADS = 64


@dataclass(frozen=True)
class Sizes:
    """Sizes of the checks.

    Attributes:
        samples: Images per model in the first check.
        neighbours: Images that run beside those whose seeds are compared.
        images: Images of the throughput check.
        streams: Streams that are open at SIGTERM.
        stream_images: Images per such stream.
        slots: Slots per model.
    """

    samples: int = 64
    neighbours: int = 2_000
    images: int = 10_000
    streams: int = 16
    stream_images: int = 128
    slots: int = 10_000


def in_batches(images: int) -> list[tuple[int, int]]:
    """Divide images among requests; return the first image and the number of images of each."""
    return [(first, min(BATCH, images - first)) for first in range(0, images, BATCH)]


def check_kernels(served: Served, sizes: Sizes) -> str:
    """Check that no decoder fell back to slower kernels."""
    decoders = [line.split("decoding with ")[1].strip() for line in served.log
                if "decoding with " in line]  # fmt: skip
    assert len(decoders) == len(MODELS), decoders
    slower = [line for line in served.log if "using the Triton kernels" in line]
    assert not slower, slower
    return "; ".join(decoders)


def check_samples(served: Served, sizes: Sizes) -> str:
    """Draw images of each model, which must be of the model's size and differ."""
    lines = []
    for model in MODELS:
        config, began = PRESETS[model], time.perf_counter()
        images = served.draw(model, sizes.samples, seed=100)
        seconds = time.perf_counter() - began
        assert [image["seed"] for image in images] == [*range(100, 100 + sizes.samples)]
        pixels = [pixels_of(image["png"]) for image in images]
        assert {x.shape for x in pixels} == {(config.height, config.width, config.channels)}
        assert len({x.tobytes() for x in pixels}) > sizes.samples // 2, "many images are the same"
        bits = np.mean([image["bits_per_dim"] for image in images])
        assert 0 < bits < 8
        lines.append(f"{len(images)} {model} in {seconds:.2f} s, {bits:.3f} bits/dim")
    return "; ".join(lines)


def check_completion(served: Served, sizes: Sizes) -> str:
    """Complete the lower half of an image; its upper half must stay as it is."""
    known = PRESETS[SMALL].height // 2
    (whole,) = served.draw(SMALL, 1, seed=7, label="3")
    original = pixels_of(whole["png"])
    began = time.perf_counter()
    reply = served.complete(SMALL, base64.b64decode(whole["png"]), known, 8, seed=8)
    seconds = time.perf_counter() - began
    completed = [pixels_of(image["png"]) for image in reply]
    assert all(np.array_equal(x[:known], original[:known]) for x in completed), (
        "known pixels differ"
    )
    assert len({x.tobytes() for x in completed}) > 1, "all completions are the same"
    return f"{len(completed)} completions in {seconds:.2f} s"


def check_scores(served: Served, sizes: Sizes) -> str:
    """Score images, whose bits/dim must be the decoder's; and ask for their next value."""
    lines = []
    for model in MODELS:
        images = served.draw(model, 4, seed=40)
        began = time.perf_counter()
        scores = served.score(model, [base64.b64decode(image["png"]) for image in images])
        seconds = time.perf_counter() - began
        apart = max(abs(x - y["bits_per_dim"]) for x, y in zip(scores, images, strict=True))
        assert apart < MAX_APART, f"{model}: {apart:.3f} bits/dim between scores and decoder"
        values = pixels_of(images[0]["png"]).ravel()[: PRESETS[model].width].tolist()
        total = sum(served.distribution(model, values))
        assert abs(total - 1) < 1e-3, f"{model}: the next value's probabilities sum to {total}"
        lines.append(f"4 {model} in {seconds:.2f} s, at most {apart:.4f} bits/dim apart")
    return "; ".join(lines)


def check_stream(served: Served, sizes: Sizes) -> str:
    """Stream pixels of each model, from which the images of the PNGs must result."""
    lines = []
    for model in MODELS:
        events = parse_sse(served.stream(model, 2, 11, threading.Event()))
        check_events(events, model, 2)
        updates = sum(event.name == "pixels" for event in events)
        lines.append(f"2 {model} in {updates} updates")
    return "; ".join(lines)


def check_events(events: Sequence[Event], model: str, n: int) -> None:
    """Raise ``AssertionError`` unless a stream is complete and its pixels equal its PNGs."""
    assert events[-1].name == "completed", f"the stream ended with {events[-1]}"
    pngs = {event.data["index"]: event.data["png"] for event in events if event.name == "image"}
    drawn = rebuild(events, PRESETS[model])
    assert pngs.keys() == drawn.keys() == set(range(n))
    for index, png in pngs.items():
        assert np.array_equal(drawn[index], pixels_of(png).reshape(drawn[index].shape))


def check_seeds(served: Served, sizes: Sizes) -> str:
    """Draw three images alone and among many; each must be the same."""
    first, compared = 1_000, (0, sizes.neighbours // 2, sizes.neighbours - 1)
    alone = [served.draw_array(SMALL, 1, first + i)[0] for i in compared]
    with ThreadPoolExecutor(THREADS) as pool:
        batches = [
            pool.submit(served.draw_array, SMALL, n, first + begin)
            for begin, n in in_batches(sizes.neighbours)
        ]
        most = most_running(served, batches)
    together = np.concatenate([batch.result() for batch in batches])
    differ = [first + i for i, x in zip(compared, alone, strict=True) if (together[i] != x).any()]
    assert not differ, f"seeds {differ} draw other images among {sizes.neighbours}"
    assert most > 1, "the images did not run at the same time"
    return f"{len(compared)} seeds alone and among {sizes.neighbours}; {most:.0f} ran at once"


def most_running(served: Served, requests: Sequence[Future[Any]]) -> float:
    """Return the largest number of running images seen until the requests are done."""
    most = 0.0
    while wait(requests, 0.02).not_done:
        most = max(most, served.metric("scanline_running_images", model=SMALL))
    return most


def check_throughput(served: Served, sizes: Sizes) -> str:
    """Draw many images, all requested at once; it must take at most a minute."""
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        batches = [
            pool.submit(served.draw_array, SMALL, n, 100_000 + begin)
            for begin, n in in_batches(sizes.images)
        ]
        drawn = sum(len(batch.result()) for batch in batches)
    seconds = time.perf_counter() - began
    figures = f"{drawn} {SMALL} in {seconds:.2f} s: {drawn / seconds:.0f} images/s"
    assert drawn == sizes.images, figures
    assert seconds <= MINUTE, figures
    return figures


def check_metrics(served: Served, sizes: Sizes) -> str:
    """Compare the metrics with the images that were drawn."""
    wait_idle(served)
    lines = []
    for model in MODELS:
        finished = served.metric("scanline_images_total", model=model, finish_reason="length")
        assert finished == served.images[model], (model, finished, served.images[model])
        assert served.metric("scanline_slots", model=model) >= sizes.slots
        steps = served.metric("scanline_step_seconds_count", model=model)
        seconds = served.metric("scanline_step_seconds_sum", model=model)
        lines.append(f"{finished:.0f} {model} in {steps:.0f} calls of the decoder, {seconds:.2f} s")
    return "; ".join(lines)


def wait_idle(served: Served) -> None:
    """Wait until the metrics show no images, some seconds at most."""
    deadline = time.monotonic() + 10
    while served.metric("scanline_running_images") + served.metric("scanline_waiting_images"):
        assert time.monotonic() < deadline, "images run or wait after all replies"
        time.sleep(0.05)


def check_sigterm(served: Served, sizes: Sizes) -> str:
    """Send SIGTERM while streams are open; they must end completely, and the server with 0."""
    started = [threading.Event() for _ in range(sizes.streams)]
    with ThreadPoolExecutor(sizes.streams) as pool:
        streams = [
            pool.submit(served.stream, LARGE, sizes.stream_images, 5_000 + 1_000 * i, event)
            for i, event in enumerate(started)
        ]
        while not all(event.is_set() for event in started):
            assert not wait(streams, 0.01).done, "a stream ended too early: use more images"
        served.process.send_signal(signal.SIGTERM)
        began, running = time.perf_counter(), sum(not stream.done() for stream in streams)
        assert running, "no stream was open at SIGTERM: use more images"
        for stream in streams:
            check_events(parse_sse(stream.result()), LARGE, sizes.stream_images)
    code = served.process.wait(30)
    assert code == 0, f"the server's exit code is {code}"
    seconds = time.perf_counter() - began
    images = sizes.streams * sizes.stream_images
    return f"{running} open streams, {images} {LARGE}; the server ended after {seconds:.2f} s"


Check = Callable[[Served, Sizes], str]
CHECKS: Mapping[str, Check] = {
    "kernels": check_kernels, "samples": check_samples, "completion": check_completion,
    "scores": check_scores, "stream": check_stream, "seeds": check_seeds,
    "throughput": check_throughput, "metrics": check_metrics, "SIGTERM": check_sigterm,
}  # fmt: skip


def run_checks(served: Served, sizes: Sizes, checks: Mapping[str, Check] = CHECKS) -> bool:
    """Run the checks in order, print a line for each, and return True if all succeeded."""
    failed = []
    for name, check in checks.items():
        began = time.perf_counter()
        try:
            result = f"ok: {check(served, sizes)}"
        except Exception as error:  # the other checks may succeed, whatever the error
            failed.append(name)
            result = f"FAILED: {type(error).__name__}: {error}"
        print(f"{name}: {result} ({time.perf_counter() - began:.1f} s)", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all checks succeeded", flush=True)
    return not failed


def server_options(backend: str, sizes: Sizes) -> list[str]:
    """Return the options of a server with room for all images of a check at once."""
    streamed = sizes.streams * sizes.stream_images
    waiting = max(4096, sizes.neighbours, sizes.images, streamed)
    return ["--backend", backend, "--slots", str(sizes.slots), "--max-waiting", str(waiting)]


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; each field of ``Sizes`` is an option."""
    parser = argparse.ArgumentParser(prog="check_service", description=__doc__)
    parser.add_argument("--backend", default="triton", help="backend of the server")
    for field in fields(Sizes):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=field.default)
    return parser.parse_args(arguments)


def main() -> None:
    """Start a server, check it, and exit with 1 if a check failed."""
    options = parse_arguments()
    sizes = Sizes(**{field.name: getattr(options, field.name) for field in fields(Sizes)})
    began = time.perf_counter()
    with running_server(MODELS, server_options(options.backend, sizes)) as served:
        print(f"ready after {time.perf_counter() - began:.1f} s", flush=True)
        for model in served.client.get("/v1/models").raise_for_status().json()["data"]:
            print({name: model[name] for name in ("id", "backend", "slots")}, flush=True)
        succeeded = run_checks(served, sizes)
    sys.exit(not succeeded)


if __name__ == "__main__":
    main()
