"""Provenance of images: the weights and the arithmetic that draw them."""

from __future__ import annotations

from dataclasses import dataclass

from scanline.kernels.native.abi import Precision
from scanline.model.checkpoint import Checkpoint


@dataclass(frozen=True)
class Provenance:
    """Weights and arithmetic of a model, as recorded in the recipes of its images.

    Attributes:
        weights: Digest of the config and the weights.
        precision: The products that the checkpoint chooses; None for the default.
        arithmetic: Version of the decoder's arithmetic; None if its bytes depend on the machine.
    """

    weights: str
    precision: Precision | None
    arithmetic: int | None

    @classmethod
    def of(cls, checkpoint: Checkpoint, arithmetic: int | None) -> Provenance:
        return cls(checkpoint.digest, checkpoint.native_precision, arithmetic)
