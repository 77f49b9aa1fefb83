"""A training run: a run that was stopped and resumed equals one that ran on."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from scanline.model.atomic_files import folder_lock, write_atomically
from scanline.model.checkpoint import (
    CheckpointError,
    load_checkpoint,
    load_facts,
    save_checkpoint,
)
from scanline.model.config import ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.network import LinearTransformer
from scanline.model.training import growth
from scanline.model.training.config import (
    TrainingConfig,
    check_shift,
    learning_rate_factor,
)
from scanline.model.training.distributed import all_cores
from scanline.model.training.host_tuning import frozen_gc
from scanline.model.training.resume import (
    dataset_fingerprint,
    load_training_state,
    saved_defaults,
    weights_path,
)
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.train_state import TrainState
from scanline.model.training.training_log import TrainingLog

log = logging.getLogger("scanline.training")


class Trainer:
    """A run in its folder: weights to serve, ``training.pt`` to resume, and ``log.jsonl``.

    Of several processes (``processes.py``) the first one writes.
    """

    def __init__(
        self, model: ModelConfig, config: TrainingConfig, folder: Path, device: torch.device
    ) -> None:
        self.config, self.folder = config, folder
        self.train_state = TrainState(model, config, device)
        folder.mkdir(parents=True, exist_ok=True)
        self.weights = weights_path(folder, {})
        self._training_log = TrainingLog(folder)
        self._writes = self.train_state.rank == 0
        self.bits = math.nan  # what the last batch cost, a dimension
        self.seconds = 0.0  # spent training, over all sessions of the run
        self.validation: list[dict[str, float]] = []
        self.origin: dict[str, Any] | None = None
        self.data: str | None = None  # what it is trained on, once it is
        self.held_out = 0  # images of the same set that it is not
        self._defaults: dict[str, float] = {}  # of the weights that it began with

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return self.train_state.step

    def train(
        self,
        data: Dataset,
        validation: Dataset | None,
        stop: StopSignal,
        quiet: bool,
        after_validation: Callable[[LinearTransformer, Path], None] | None = None,
    ) -> None:
        """Run to the last step, or until a stop is asked for; either way leave a checkpoint.

        ``after_validation`` is given the averaged network and the folder, to draw samples with.
        Raises ``ValueError`` where the images or labels do not fit the model, and
        ``FloatingPointError`` if the loss stops being a number (the checkpoint stays the last
        good one; the weights in memory are spoilt). A resumed run raises ``CheckpointError`` where
        the data are others.
        """
        self._check(data)
        self.held_out = 0 if validation is None else len(validation)
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._writes:
            self._training_log.repair() if self.step else self._training_log.start()
        images = torch.from_numpy(data.images.reshape(len(data), -1, data.images.shape[-1]))
        labels = None if data.labels is None else torch.from_numpy(data.labels)
        start = self.step
        bar = tqdm(
            total=self.config.steps, initial=start, unit="step", disable=quiet or not self._writes
        )
        saved = start
        with bar, frozen_gc():
            if validation is not None and not stop.requested and self._missed():
                self._take_stock(validation, bar, after_validation)
            while self.step < self.config.steps and not self.train_state.any_stop_requested(
                stop.requested
            ):
                began = time.perf_counter()
                bits = self.bits = self.train_state.take_step(images, labels)
                took = time.perf_counter() - began
                self.seconds += took
                rate = self.config.batch / took
                bar.set_postfix_str(f"{bits:.3f} bits/dim, {rate:.0f} images/s")
                bar.update()
                self._log(step=self.step, bits_per_dim=bits, images_per_second=rate)
                if self._due():
                    self._take_stock(validation, bar, after_validation)
                elif self.step % self.config.checkpoint_every == 0:
                    self.save()
                else:
                    continue
                saved = self.step
        if saved != self.step or (self.step and not self._served()):
            self.save()

    def _served(self) -> bool:
        """Whether the weights that are there are those of this step: they may have been deleted."""
        try:
            return load_facts(self.weights).get("steps") == self.step
        except CheckpointError:
            return False

    def _due(self) -> bool:
        return self.step % self.config.evaluate_every == 0 or self.step == self.config.steps

    def _missed(self) -> bool:
        """Whether a validation was due and broken off, as by a second Ctrl-C."""
        done = {one["step"] for one in self.validation}
        return self.step > 0 and self._due() and self.step not in done

    def _take_stock(
        self,
        validation: Dataset | None,
        bar: tqdm[Any],
        after_validation: Callable[[LinearTransformer, Path], None] | None,
    ) -> None:
        """Validate, save, and draw how the run stands."""
        self._validate(validation, bar)
        self.save()
        if after_validation and self._writes:
            try:
                after_validation(self.train_state.ema, self.folder)
            except (OSError, RuntimeError, ValueError) as error:
                bar.write(f"step {self.step}: no pictures of it, for {error}")

    def _check(self, data: Dataset) -> None:
        config = self.train_state.model.config
        shape = (config.height, config.width, config.channels)
        if data.images.shape[1:] != shape:
            raise ValueError(f"images are {data.images.shape[1:]}, the model draws {shape}")
        check_shift(self.config.shift, min(config.height, config.width))
        if config.classes and data.classes != config.classes:
            raise ValueError(f"the data's classes {data.classes} are not the model's")
        mine = dataset_fingerprint(data)
        if self.data not in (None, mine):
            raise CheckpointError(
                f"the run in {self.folder} was trained on other images: give it the same, held out "
                "as before, or start again in another folder"
            )
        self.data = mine

    def _validate(self, validation: Dataset | None, bar: tqdm[Any]) -> None:
        if validation is None or not self._writes:
            return
        self.save()  # for it takes minutes, in which a second Ctrl-C may come
        train_state = self.train_state
        with all_cores():
            result = evaluate(
                train_state.ema, validation, bf16=train_state.bf16, device=train_state.device
            )
        self.validation.append({"step": self.step, "bits_per_dim": result.bits_per_dim})
        bar.write(f"step {self.step}: validation {result}")
        self._log(step=self.step, validation=result.bits_per_dim, error=result.finite_error)

    def _log(self, **fields: float | None) -> None:
        """Write a line of the log, or save what it would tell of and raise ``OSError``."""
        if not self._writes:
            return
        try:
            self._training_log.append(fields | {"seconds": round(self.seconds, 2)})
        except OSError:
            with contextlib.suppress(OSError, FloatingPointError):  # the log's is what is told
                self.save()
            raise

    def facts(self) -> dict[str, Any]:
        """Describe the run for the checkpoint's metadata."""
        return {
            "steps": self.step,
            "images_seen": self.step * self.config.batch,
            "training_seconds": round(self.seconds),
            "training": asdict(self.config),
            "validation": self.validation,
            "trained_on": self.data,
            "held_out": self.held_out,
            "started_from": self.origin,
        }

    def save(self) -> None:
        """Write the averaged weights to serve and all that resuming needs, each atomically.

        Raises ``FloatingPointError``, and writes nothing, where some are no numbers.
        """
        if not self._writes:
            return
        train_state = self.train_state
        train_state.check_finite()
        with folder_lock(self.weights.resolve().parent):
            # How it is drawn outlasts its training, though it was said meanwhile.
            self._defaults = saved_defaults(self.weights) or self._defaults
            facts = self.facts() | ({"defaults": self._defaults} if self._defaults else {})
            save_checkpoint(self.weights, train_state.ema, facts)
        buffer = io.BytesIO()
        everything = train_state.state_dict() | {
            "config": train_state.model.config.to_dict(),
            "training": asdict(self.config),
            "seconds": self.seconds,
            "validation": self.validation,
            "origin": self.origin,
            "data": self.data,
            "held_out": self.held_out,
            "weights": self.weights.name,
            "defaults": self._defaults,
        }
        torch.save(everything, buffer)
        write_atomically(self.folder / "training.pt", buffer.getvalue())

    def start_from(self, path: Path) -> None:
        """Begin with the weights of a checkpoint; raises ``CheckpointError`` on another network.

        A network without the short convolution may be the start of one with it, and one of fewer
        layers that of a deeper one: it draws the same images at first (``growth.py``).
        """
        start = load_checkpoint(path)
        mine = self.train_state.model.config
        growth.check_growable(path, start.model.config, mine)
        self.train_state.load_weights(
            growth.grow(start.model.state_dict(), start.model.config, mine)
        )
        runs = (start.facts, start.facts.get("started_from") or {})  # its own, and all before it
        seen = sum(facts.get("images_seen") or 0 for facts in runs)
        # What they were trained on is not held out from this one.
        before = [{key: start.facts.get(key) for key in ("trained_on", "held_out")}]
        before += [one for one in runs[1].get("runs", []) if one not in before]
        self.origin = {"name": start.name, "images_seen": seen, "runs": before}
        self._defaults = start.facts.get("defaults", {})

    def resume(self) -> None:
        """Go on from the folder's checkpoint, to the bit, or raise ``CheckpointError``."""
        path = self.folder / "training.pt"
        train_state = self.train_state
        saved = load_training_state(path, train_state.model.config, self.config, train_state.device)
        try:
            self._restore(saved)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); start again in another folder, --from its weights"
            ) from None
        ended = {name: saved["training"].get(name) for name in ("steps", "decay")}
        then = replace(self.config, **{k: v for k, v in ended.items() if v is not None})
        fallen, now = (learning_rate_factor(self.step, each) for each in (then, self.config))
        if now > fallen and self._writes:
            log.warning(
                "the learning rate had fallen to %.0f %% and goes on at %.0f %%: at first that "
                "costs some of what was learned; a run --from its weights begins at any rate",
                100 * fallen, 100 * now,
            )  # fmt: skip

    def _restore(self, saved: dict[str, Any]) -> None:
        self.train_state.load_state_dict(saved)
        self.seconds, self.validation = saved["seconds"], saved["validation"]
        self.origin = saved.get("origin")
        self.data, self.weights = saved.get("data"), weights_path(self.folder, saved)
        self._defaults = saved.get("defaults", {})
