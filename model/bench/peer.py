"""Peer of the benchmark: our network run by Idiap's fast-transformers in recurrent form."""

from __future__ import annotations

import torch

from scanline.model.network import LinearTransformer


class Peer:
    """Sampler that runs our network with the recurrent encoder of fast-transformers.

    Args:
        model: One of the paper's networks.
        slots: Number of images.
    """

    backend, precision = "fast-transformers", "float32"

    def __init__(self, model: LinearTransformer, slots: int) -> None:
        from fast_transformers.builders import RecurrentEncoderBuilder

        c = model.config
        self.model, self.slots = model, slots
        self.encoder = RecurrentEncoderBuilder.from_kwargs(
            attention_type="linear", n_layers=c.n_layers, n_heads=c.n_heads,
            feed_forward_dimensions=c.d_ff, query_dimensions=c.head_size,
            value_dimensions=c.head_size, activation=c.activation, final_normalization=True,
        ).get().eval()  # fmt: skip
        weights: dict[str, torch.Tensor] = {}
        for key, tensor in model.state_dict().items():
            kind, *rest = key.split(".")
            if kind == "norm":
                weights[key] = tensor
            elif kind == "blocks":
                *path, part, name = rest
                if path[-1] == "attention":
                    part += "_projection"
                weights[".".join(["layers", *path, part, name])] = tensor
        self.encoder.load_state_dict(weights)
        self.restart()

    def restart(self) -> None:
        """Start new images."""
        c = self.model.config
        self.canvas = torch.zeros(self.slots, c.pixels, c.channels, dtype=torch.uint8)
        self.step, self.memory = 0, None
        self.parameters = torch.empty(0)

    @torch.inference_mode()
    def draw(self, n: int) -> None:
        """Sample the next n pixels of every image, at temperature 1."""
        config, flat = self.model.config, self.canvas.flatten(1)
        for _ in range(n * config.steps_per_pixel):
            steps = torch.full((self.slots, 1), self.step)
            x = self.model.embed(self.canvas, steps, None).squeeze(1)
            x, self.memory = self.encoder(x, self.memory)
            self.parameters = self.model.head(x)
            uniforms = torch.rand(self.slots, config.step_draws)
            values = self.model.head.sample(self.parameters, uniforms, torch.ones(self.slots))
            flat[:, self.step] = values[:, 0]
            self.step += 1

    def check(self) -> None:
        """Raise ``RuntimeError`` unless the peer computes the same as our network."""
        self.restart()
        self.draw(4)
        with torch.no_grad():
            expected = self.model(self.canvas)[:, self.step - 1]
        if not torch.allclose(self.parameters, expected, rtol=1e-3, atol=1e-4):
            raise RuntimeError(
                "fast-transformers computes other parameters than our network, so it is not timed"
            )
