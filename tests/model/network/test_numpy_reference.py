"""Implementation of ``mnist`` in numpy, following weights/README.md."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model.api import draw
from tests.conftest import assert_close, random_canvas, random_network, tiny_config

CONFIG = tiny_config(short_conv="2x3", classes=("cat", "dog"))
NEIGHBOURS = [(0, c) for c in (-3, -2, -1)] + [(r, c) for r in (-1, -2) for c in range(-3, 4)]

Array = NDArray[np.float64]


def gelu(x: Array) -> Array:
    y: Array = x / 2 * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    return y


def phi(x: Array) -> Array:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def kept(p: Array, share: float) -> NDArray[np.bool_]:
    """Return the mask of the most likely values with this share."""
    order = np.argsort(-p, kind="stable")
    before = p[order].cumsum() - p[order]
    found = np.zeros(len(p), np.bool_)
    found[order] = before < share * p.sum()
    return found


class NumpyNetwork:
    """Network with given tensors, evaluated step by step on one image ``[H, W]``."""

    def __init__(self, tensors: dict[str, Array], heads: int, label: int) -> None:
        self.w, self.label = tensors, label  # the number of classes means no label
        self.height, self.width = (len(tensors[f"positions.{k}"]) for k in ("row", "column"))
        self.layers = len({name.split(".")[1] for name in tensors if name[:6] == "blocks"})
        D = tensors["norm.weight"].size
        self.heads, K = heads, D // heads
        self.kv, self.z = np.zeros((self.layers, heads, K, K)), np.zeros((self.layers, heads, K))
        self.seen = np.zeros((self.layers, 2, self.height + 1, self.width + 2, D))  # zero padding

    def linear(self, x: Array, name: str) -> Array:
        y: Array = self.w[f"{name}.weight"] @ x + self.w[f"{name}.bias"]
        return y

    def norm(self, x: Array, name: str) -> Array:
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        y: Array = x * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]
        return y

    def conv(self, x: Array, layer: int, half: int, row: int, column: int) -> Array:
        seen, r, c = self.seen[layer, half], row + 1, column + 1
        seen[r, c] = x
        taps = (x, seen[r, c - 1], seen[r - 1, c - 1], seen[r - 1, c], seen[r - 1, c + 1])
        weight = self.w[f"blocks.{layer}.conv{half + 1}.weight"]
        y: Array = (weight * np.stack(taps)).sum(0)
        return y

    def step(self, image: NDArray[Any], t: int) -> Array:
        """Return the log probability of each value of pixel t, given the earlier ones."""
        row, column = divmod(t, self.width)
        x = self.w["positions.row"][row] + self.w["positions.column"][column]
        x = x + self.w["label_embedding.weight"][self.label]
        for place, (down, right) in enumerate(NEIGHBOURS):
            r, c = row + down, column + right
            inside = r >= 0 and 0 <= c < self.width
            x = x + self.w["input.tables"][257 * place + (int(image[r, c]) if inside else 256)]
        for layer in range(self.layers):
            block = f"blocks.{layer}"
            y = self.conv(self.norm(x, f"{block}.norm1"), layer, 0, row, column)
            parts = [
                self.linear(y, f"{block}.attention.{one}") for one in ("query", "key", "value")
            ]
            q, k, v = (part.reshape(self.heads, -1) for part in parts)
            q, k = phi(q), phi(k)
            self.kv[layer] += k[:, :, None] * v[:, None, :]
            self.z[layer] += k
            o = np.einsum("hk,hkv->hv", q, self.kv[layer])
            o /= (q * self.z[layer]).sum(1, keepdims=True) + 1e-6
            x = x + self.linear(o.reshape(-1), f"{block}.attention.out")
            y = self.conv(self.norm(x, f"{block}.norm2"), layer, 1, row, column)
            x = x + self.linear(gelu(self.linear(y, f"{block}.linear1")), f"{block}.linear2")
        logits = self.linear(self.norm(x, "norm"), "head.predictor")
        logits = logits - logits.max()
        result: Array = logits - np.log(np.exp(logits).sum())
        return result


def numpy_network(network: torch.nn.Module, label: int) -> NumpyNetwork:
    tensors = {name: t.double().numpy() for name, t in network.state_dict().items()}
    return NumpyNetwork(tensors, CONFIG.n_heads, label)


def test_numpy_likelihood_equals_the_network() -> None:
    network, canvas = random_network(CONFIG), random_canvas(CONFIG, 1)
    image = canvas.numpy().reshape(CONFIG.height, CONFIG.width)
    for label in range(3):
        one = numpy_network(network, label)
        bits = [-one.step(image, t)[image.flat[t]] / np.log(2) for t in range(CONFIG.pixels)]
        with torch.no_grad():
            expected = network.bits(canvas, torch.tensor([label if label < 2 else -1]))[0]
        assert_close(torch.tensor(bits, dtype=torch.float64), expected)


@pytest.mark.parametrize(
    ("label", "guidance", "top_p"), [(2, 1.0, 1.0), (2, 1.0, 0.9), (1, 1.75, 0.98)]
)
def test_numpy_samples_equal_the_reference_decoder(
    label: int, guidance: float, top_p: float
) -> None:
    network, seed = random_network(CONFIG, dtype=torch.float32), 2**40 + 7
    words = np.random.Philox(key=seed).random_raw(CONFIG.pixels)
    uniforms = ((words >> np.uint64(41)).astype(np.float64) + 0.5) / 2**23
    one, other = numpy_network(network, label), numpy_network(network, 2)
    image = np.zeros((CONFIG.height, CONFIG.width), np.uint8)
    for t, u in enumerate(uniforms):
        log_p, without = one.step(image, t), other.step(image, t)
        if guidance != 1:
            likely = kept(np.exp(log_p), 1 - (1 - top_p) / 4)
            log_p = np.where(likely, guidance * log_p + (1 - guidance) * without, -np.inf)
        p = np.exp(log_p - log_p.max())
        if top_p < 1:
            p = p * kept(p, top_p)
        total = p.cumsum()
        image.flat[t] = min(int((total <= u * total[-1]).sum()), 255)
    label_or_none = None if label == 2 else label
    drawn = draw(
        network,
        1,
        seed=seed,
        label=label_or_none,
        guidance=guidance,
        top_p=top_p,
        backend="reference",
    )
    assert (drawn[0, :, :, 0] == image).all()
