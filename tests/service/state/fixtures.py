"""Servers whose models are replaced, and the files of these models."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch

from scanline.model.checkpoint import load_checkpoint, save_checkpoint
from scanline.model.network import LinearTransformer
from scanline.service.state.app_state import AppState
from scanline.service.state.reload import ModelReloader
from tests.service.fixtures import tiny_model


class Server(NamedTuple):
    """A server that watches a folder, and the gate that its decoders' steps wait for."""

    folder: Path
    app_state: AppState
    reloader: ModelReloader
    client: httpx.Client
    gate: threading.Event

    def reload(self) -> Any:
        reply = self.client.post("/v1/models/reload")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def weights(self) -> dict[str, str]:
        return {one["id"]: one["weights"] for one in self.client.get("/v1/models").json()["data"]}

    def digest(self, name: str = "it") -> str:
        return load_checkpoint(self.folder / f"{name}.safetensors").digest


def network(seed: int) -> LinearTransformer:
    """Return a small network that draws other pixels with another seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = tiny_model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def save(folder: Path, seed: int, name: str = "it", **facts: Any) -> Path:
    path = folder / f"{name}.safetensors"
    save_checkpoint(path, network(seed), facts)
    return path
