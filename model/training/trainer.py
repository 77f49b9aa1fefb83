"""Training loop with validation, checkpoints and bit-identical resumption."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from scanline.model.atomic_files import folder_lock, write_atomically
from scanline.model.checkpoint import (
    TRAINING_STATE,
    CheckpointError,
    load_checkpoint,
    load_facts,
    save_checkpoint,
)
from scanline.model.config import ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.evaluation.likelihood import check_image_shape, evaluate
from scanline.model.network import LinearTransformer
from scanline.model.progress import Progress, show_progress
from scanline.model.training import growth
from scanline.model.training.config import (
    SCHEDULE_SETTINGS,
    TrainingConfig,
    check_shift,
    check_square,
    learning_rate_factor,
)
from scanline.model.training.distributed import all_cores
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

_RECENT_STEPS = 100  # steps over which the training loss is averaged; one batch is noisy


class Trainer:
    """A run in its folder: weights to serve, ``training.pt`` to resume, and ``log.jsonl``.

    A run that was stopped and resumed equals one without interruption, bit for bit. With several
    data-parallel processes (``distributed.py``) only the first writes.

    Args:
        model: Network to train.
        config: Training settings.
        folder: Folder of the run; created if it does not exist.
        device: Device to train on.
    """

    def __init__(
        self, model: ModelConfig, config: TrainingConfig, folder: Path, device: torch.device
    ) -> None:
        self.config, self.folder = config, folder
        self.train_state = TrainState(model, config, device)
        folder.mkdir(parents=True, exist_ok=True)
        self.weights = weights_path(folder, {})
        self._training_log = TrainingLog(folder)
        self._is_writer = self.train_state.rank == 0
        self._recent_bits = deque[float](maxlen=_RECENT_STEPS)  # bits/dim of the last batches
        self.seconds = 0.0  # of training, over all sessions of the run
        self.validation: list[dict[str, float]] = []
        self.origin: dict[str, Any] | None = None
        self.data: str | None = None  # fingerprint of the training set, once known
        self.held_out = 0  # images excluded from the training set for validation
        self._defaults: dict[str, float] = {}  # sampling defaults stored with the weights

    @property
    def step(self) -> int:
        """Number of steps taken so far."""
        return self.train_state.step

    @property
    def recent_bits(self) -> float:
        """Mean bits/dim of the last batches of this session; NaN if no step was taken.

        The mean is over 100 steps, or over the last fifth of a shorter run, whose loss still falls.
        """
        count = max(1, min(_RECENT_STEPS, self.step // 5))
        last = list(self._recent_bits)[-count:]
        return sum(last) / len(last) if last else math.nan

    def train(
        self,
        data: Dataset,
        validation: Dataset | None,
        stop: StopSignal,
        quiet: bool,
        after_validation: Callable[[LinearTransformer, Path], None] | None = None,
    ) -> None:
        """Train to the last step or until a stop is requested, and leave a checkpoint.

        Args:
            data: Images to train on.
            validation: Held-out images, or None.
            stop: Stop request, checked after every step.
            quiet: Show no progress bar.
            after_validation: Receives the averaged network and the folder after each validation,
                for example to draw samples.

        Raises:
            ValueError: If the images or labels do not fit the network.
            CheckpointError: If a resumed run was trained on other data.
            FloatingPointError: If training diverged. The checkpoint is the last good one; the
                weights in memory are unusable.
        """
        self._check(data)
        self.held_out = 0 if validation is None else len(validation)
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._is_writer:
            self._training_log.repair() if self.step else self._training_log.start()
        images = torch.from_numpy(data.images.reshape(len(data), -1, data.images.shape[-1]))
        labels = None if data.labels is None else torch.from_numpy(data.labels)
        start = self.step
        quiet = quiet or not self._is_writer
        bar = show_progress(self.config.steps, "step", initial=start, disable=quiet)
        saved = start
        with bar:
            if validation is not None and not stop.requested and self._validation_missed():
                self._validate_and_save(validation, bar, after_validation)
            while self.step < self.config.steps and not self.train_state.any_stop_requested(
                stop.requested
            ):
                began = time.perf_counter()
                bits = self.train_state.take_step(images, labels)
                self._recent_bits.append(bits)
                took = time.perf_counter() - began
                self.seconds += took
                rate = self.config.batch / took
                bar.set_postfix_str(f"{bits:.3f} bits/dim, {rate:.0f} images/s")
                bar.update()
                self._log(step=self.step, bits_per_dim=bits, images_per_second=rate)
                if self._validation_due():
                    self._validate_and_save(validation, bar, after_validation)
                elif self.step % self.config.checkpoint_every == 0:
                    self.save()
                else:
                    continue
                saved = self.step
        if saved != self.step or (self.step and not self._weights_current()):
            self.save()

    def _weights_current(self) -> bool:
        """Return True if the weights file is of this step: a user may have deleted it."""
        try:
            return load_facts(self.weights).get("steps") == self.step
        except CheckpointError:
            return False

    def _validation_due(self) -> bool:
        return self.step % self.config.evaluate_every == 0 or self.step == self.config.steps

    def _validation_missed(self) -> bool:
        """Return True if the validation at this step is missing, as after a second Ctrl-C."""
        done = {one["step"] for one in self.validation}
        return self.step > 0 and self._validation_due() and self.step not in done

    def _validate_and_save(
        self,
        validation: Dataset | None,
        bar: Progress,
        after_validation: Callable[[LinearTransformer, Path], None] | None,
    ) -> None:
        """Validate, save a checkpoint, and call ``after_validation``."""
        self._validate(validation, bar)
        self.save()
        if after_validation and self._is_writer:
            try:
                after_validation(self.train_state.ema, self.folder)
            except (OSError, RuntimeError, ValueError) as error:
                bar.write(f"step {self.step}: no sample images ({error})")

    def _check(self, data: Dataset) -> None:
        config = self.train_state.model.config
        check_image_shape(config, data)
        check_shift(self.config.shift, min(config.height, config.width))
        check_square(self.config.dist_aug, config.height, config.width)
        if config.classes and data.classes != config.classes:
            raise ValueError(
                f"the data's classes {data.classes} are not the network's {config.classes}"
            )
        fingerprint = dataset_fingerprint(data)
        if self.data not in (None, fingerprint):
            raise CheckpointError(
                f"the run in {self.folder} was trained on other images: give it the same images "
                "with the same --hold-out, or train in another folder"
            )
        self.data = fingerprint

    def _validate(self, validation: Dataset | None, bar: Progress) -> None:
        if validation is None or not self._is_writer:
            return
        self.save()  # a second Ctrl-C may come during the validation, which takes minutes
        train_state = self.train_state
        with all_cores():
            result = evaluate(
                train_state.ema, validation, bf16=train_state.bf16, device=train_state.device
            )
        self.validation.append({"step": self.step, "bits_per_dim": result.bits_per_dim})
        bar.write(f"step {self.step}: validation {result}")
        self._log(step=self.step, validation=result.bits_per_dim, error=result.finite_error)

    def _log(self, **fields: float | None) -> None:
        """Append a line to the log; if that fails, save a checkpoint and raise ``OSError``."""
        if not self._is_writer:
            return
        try:
            self._training_log.append(fields | {"seconds": round(self.seconds, 2)})
        except OSError:
            with contextlib.suppress(OSError, FloatingPointError):  # report the log's error
                self.save()
            raise

    def facts(self) -> dict[str, Any]:
        """Return the run's metadata for the checkpoint."""
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
        """Write the averaged weights and the state to resume, each atomically.

        Raises:
            FloatingPointError: If a weight is not finite; nothing is written.
        """
        if not self._is_writer:
            return
        train_state = self.train_state
        train_state.check_finite()
        with folder_lock(self.weights.resolve().parent):
            # Keep sampling defaults that `scanline evaluate` stored during the training.
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
        write_atomically(self.folder / TRAINING_STATE, buffer.getvalue())

    def start_from(self, path: Path) -> None:
        """Start with the weights of a checkpoint.

        A checkpoint without the short convolution, or with fewer layers or feed-forward features,
        is grown into this network and draws the same images at first (``growth.py``).

        Raises:
            CheckpointError: If the checkpoint cannot be read or is of another network.
        """
        start = load_checkpoint(path)
        network = self.train_state.model.config
        growth.check_growable(path, start.model.config, network)
        weights, initial = start.model.state_dict(), self.train_state.model.state_dict()
        initial = {name: tensor.cpu() for name, tensor in initial.items()}
        self.train_state.load_weights(growth.grow(weights, start.model.config, network, initial))
        runs = (start.facts, start.facts.get("started_from") or {})  # its own and all earlier ones
        seen = sum(facts.get("images_seen") or 0 for facts in runs)
        # Recorded so that images those runs were trained on do not count as held out.
        earlier = [{key: start.facts.get(key) for key in ("trained_on", "held_out")}]
        earlier += [one for one in runs[1].get("runs", []) if one not in earlier]
        self.origin = {"name": start.name, "images_seen": seen, "runs": earlier}
        self._defaults = start.facts.get("defaults", {})

    def resume(self) -> None:
        """Restore the state saved in the folder; raise ``CheckpointError`` if it cannot be."""
        path = self.folder / TRAINING_STATE
        train_state = self.train_state
        saved = load_training_state(path, train_state.model.config, self.config, train_state.device)
        try:
            self._restore(saved)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); start a new run in another folder, "
                "--from its weights"
            ) from None
        schedule = {name: saved["training"].get(name) for name in SCHEDULE_SETTINGS}
        then = replace(self.config, **{k: v for k, v in schedule.items() if v is not None})
        previous, now = (learning_rate_factor(self.step, each) for each in (then, self.config))
        if now > previous and self._is_writer:
            log.warning(
                "the learning rate had fallen to %.0f %% and continues at %.0f %%, which undoes "
                "some progress at first; a new run --from the weights can start at any rate",
                100 * previous, 100 * now,
            )  # fmt: skip

    def _restore(self, saved: dict[str, Any]) -> None:
        self.train_state.load_state_dict(saved)
        self.seconds, self.validation = saved["seconds"], saved["validation"]
        self.origin = saved.get("origin")
        self.data, self.weights = saved.get("data"), weights_path(self.folder, saved)
        self._defaults = saved.get("defaults", {})
