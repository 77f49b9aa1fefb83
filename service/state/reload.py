"""Reload of the served models from their folder, without a restart."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Counter

from scanline.model.checkpoint import (
    Checkpoint,
    CheckpointError,
    find_checkpoints,
    load_checkpoint,
    load_checkpoints,
)
from scanline.model.decoders.base import BackendError
from scanline.service.settings import Settings
from scanline.service.state.registry import LoadedModel, ModelRegistry

log = logging.getLogger("scanline.server")


class FileState(NamedTuple):
    """State of a checkpoint's file, which changes with every write, rename or new link."""

    path: Path
    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Read the state of a file; raises ``OSError``."""
        stat = path.stat()
        return cls(path, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@dataclass
class ReloadResult:
    """Changes that a reload made, by the models' names.

    Attributes:
        failed: Reasons why files were not loaded, by model. The name is "" if the folder itself
            cannot be read.
    """

    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


class ModelReloader:
    """Keeps the served models equal to the checkpoints of the settings' folder.

    A new file is served, a changed one replaces its model, and the model of a removed one is no
    longer served. A file that cannot be used changes nothing. Neither does a folder without a
    usable checkpoint, so that there is always a model.

    Args:
        settings: The folder, and the names of the models if not all are served.
        registry: The served models.
        serve: Function that serves models from now on (``AppState.serve``).
        changes: Counter of changes, by their kind.
    """

    def __init__(
        self,
        settings: Settings,
        registry: ModelRegistry,
        serve: Callable[[dict[str, LoadedModel]], None],
        changes: Counter,
    ) -> None:
        self._registry, self._serve, self._changes = registry, serve, changes
        self._folder, self._names = settings.weights, settings.models
        self._loaded: dict[str, FileState] = {}  # files that the served models were read from
        self._lock = threading.Lock()  # one reload at a time

    def load(self) -> list[Checkpoint]:
        """Load the models at the start, the default first; raise ``CheckpointError``."""
        # Read before the files, so that a change in between is noticed.
        with contextlib.suppress(CheckpointError):  # the next line says what is missing
            self._loaded = self._scan()
        return load_checkpoints(self._folder, self._names)

    @property
    def busy(self) -> bool:
        """True while models are being reloaded."""
        return self._lock.locked()

    def watch(self, seconds: float, stopped: Callable[[], bool]) -> None:
        """Reload whenever the folder has changed.

        A change is used once it is as old as one interval, because the file may still be written.
        If that fails while a replaced model still draws, it is tried again without that model.

        Args:
            seconds: Interval in which the folder's files are listed.
            stopped: Function that returns True once the server shuts down.
        """
        handled = previous = self._loaded
        try_again = False
        while not stopped():
            time.sleep(seconds)
            try:
                files = self._scan()
            except CheckpointError:
                files = {}
            changed = files != handled and files == previous
            if changed or (try_again and not self._registry.retiring):
                retiring = self._registry.retiring
                failed = self.reload().failed
                handled, try_again = files, bool(failed) and retiring
                if try_again:
                    log.info("trying again once the replaced models have drawn their last images")
            previous = files

    def reload(self) -> ReloadResult:
        """Serve what the folder contains now, and report what has changed."""
        result = ReloadResult()
        with self._lock:
            try:
                files = self._scan()
            except CheckpointError as error:
                result.failed[""] = str(error)
                files = self._loaded
            for name, state in files.items():
                if self._loaded.get(name) != state:
                    self._load_changed(name, state, result)
            self._remove(files, result)
        self._report(result)
        return result

    def _scan(self) -> dict[str, FileState]:
        """Return the state of each file of a model; raise ``CheckpointError`` if there is none."""
        found = find_checkpoints(self._folder)
        files: dict[str, FileState] = {}
        for name in self._names or found:
            try:
                files[name] = FileState.of(found[name])
            except (KeyError, OSError):  # removed
                continue
        if not files:
            raise CheckpointError(f"none of {', '.join(self._names or found)} is in {self._folder}")
        return files

    def _load_changed(self, name: str, state: FileState, result: ReloadResult) -> None:
        """Open the model of a new or changed file, and serve it."""
        served = self._registry.served
        try:
            checkpoint = load_checkpoint(state.path)
            if FileState.of(state.path) != state:
                raise CheckpointError(f"{state.path} changed while it was read")
            if (old := served.get(name)) is None or _differs(checkpoint, old.checkpoint):
                opened = self._registry.open([checkpoint])
                self._serve_ordered({**served, **opened})
                (result.added if old is None else result.replaced).append(name)
            self._loaded[name] = state
        except (BackendError, ValueError, OSError) as error:
            result.failed[name] = str(error)
        except Exception as error:  # such as a lack of memory; the server goes on
            log.exception("reloading %s failed", name)
            result.failed[name] = f"{name} cannot be opened: {error}"

    def _remove(self, files: dict[str, FileState], result: ReloadResult) -> None:
        """Stop serving the models whose files are gone, unless no model would be left."""
        served = self._registry.served
        left = {name: loaded for name, loaded in served.items() if name in files}
        if not left:
            return
        result.removed = [name for name in served if name not in left]
        self._loaded = {name: state for name, state in self._loaded.items() if name in files}
        if result.removed:
            self._serve_ordered(left)

    def _serve_ordered(self, models: dict[str, LoadedModel]) -> None:
        """Serve these models, the default first (as ``load_checkpoints`` orders them)."""
        names: Sequence[str] = self._names
        if not names:
            names = sorted(models, key=lambda name: (models[name].engine.config.steps, name))
        self._serve({name: models[name] for name in names if name in models})

    def _report(self, result: ReloadResult) -> None:
        """Log and count the changes."""
        for kind in ("added", "replaced", "removed"):
            for name in getattr(result, kind):
                log.info("%s: model %s", name, kind)
                self._changes.labels(kind).inc()
        for name, reason in result.failed.items():
            log.error("%s: not reloaded: %s", name or self._folder, reason)
            self._changes.labels("failed").inc()


def _differs(new: Checkpoint, old: Checkpoint) -> bool:
    """Return True if a checkpoint draws or describes itself differently from another one."""
    return (new.digest, new.facts) != (old.digest, old.facts)
