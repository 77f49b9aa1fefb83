"""Set-up of a training run: the checks and choices between a user's options and the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scanline.model.checkpoint import TRAINING_STATE, load_facts, read_config
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.training.config import TrainingConfig, check_shift
from scanline.model.training.datasets import (
    DEFAULT_SIZE,
    DataSource,
    check_training_source,
    load_training_data,
)
from scanline.model.training.distributed import choose_process_count
from scanline.model.training.network_choice import (
    NetworkOverrides,
    check_is_run_of,
    choose_network,
)
from scanline.model.training.resume import check_resumable, read_saved_run, weights_path
from scanline.model.training.run import Run, check_no_run


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """A user's options for a training run, as in ``scanline train``.

    Attributes:
        source: Preset, whose data set to train on, or folder of images.
        size: Side in pixels of the scaled images of the folder; None for the default.
        grey: Convert the folder's images to grey.
        out: Folder of the run; None for the default.
        resume: Continue the run in that folder.
        start_from: Checkpoint whose weights a new run starts with.
        settings: Fields of ``TrainingConfig`` that the user set; a resumed run keeps the others,
            and a new run has their defaults.
        overrides: Changes to the preset's network.
        processes: Number of data-parallel processes; None for the default.
        hold_out: Number of images kept for validation; None for the default.
    """

    source: DataSource
    size: int | None = None
    grey: bool = False
    out: Path | None = None
    resume: bool = False
    start_from: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    overrides: NetworkOverrides = field(default_factory=NetworkOverrides)
    processes: int | None = None
    hold_out: int | None = None


def prepare_run(options: RunOptions) -> Run:
    """Check a user's options, load the data, and choose the network.

    Everything that can be checked without the data is checked first, because reading a folder of
    images may take minutes.

    Raises:
        ValueError: If the options are invalid or contradict each other or the run to resume.
        CheckpointError: If the run to resume or the checkpoint to start from cannot be used.
        OSError: If the data cannot be read.
    """
    source = options.source
    folder = choose_run_folder(options.out, source.dataset, source.images, options.resume)
    size, grey, hold_out = options.size, options.grey, options.hold_out
    saved_run = read_saved_run(folder) if options.resume else None
    if saved_run is None:
        training_config = TrainingConfig(**options.settings)
    else:
        check_resume_options(
            saved_run.network, size, grey, options.start_from, hold_out, saved_run.held_out
        )
        training_config = replace(saved_run.training_config, **options.settings)
        hold_out = saved_run.held_out if hold_out is None else hold_out
    check_training_source(source, size, grey)
    choose_process_count(training_config.batch, options.processes)
    previous = None if saved_run is None else saved_run.network
    if options.start_from is not None:
        previous = read_config(options.start_from)
    if source.images is not None and previous is not None:
        size, grey = size or previous.height, grey or previous.channels == 1
    # For a folder, whose channels are not known yet, any preset serves to check the overrides.
    preset = PRESETS[source.dataset or "cifar10"]
    network = options.overrides.apply(previous or preset)
    side = preset.height if source.images is None else size or DEFAULT_SIZE
    check_shift(training_config.shift, side)
    if saved_run is not None:
        check_is_run_of(source.dataset, saved_run.network)
        check_resumable(folder / TRAINING_STATE, saved_run.saved, network, training_config)
    start = load_facts(options.start_from) if options.start_from else None
    data, validation = load_training_data(source, hold_out, size=size, grey=grey, start=start)
    if saved_run is None:
        network = choose_network(
            source.dataset, data, options.overrides, start_from=options.start_from
        )
    return Run(
        network=network,
        training_config=training_config,
        folder=folder,
        resume=options.resume,
        start_from=options.start_from,
        data=data,
        validation=validation,
        processes=options.processes,
    )


def choose_run_folder(
    out: Path | None, dataset: str | None, images: Path | None, resume: bool
) -> Path:
    """Choose a run's folder: ``out``, else ``runs/`` and the name of the data.

    Raises:
        ValueError: If the folder holds a run that is not to be resumed, or none to resume, or lies
            in the folder of images.
    """
    folder = out or Path("runs") / (dataset or (images.resolve().name if images else ""))
    if images and not dataset and folder.resolve().is_relative_to(images.resolve()):
        raise ValueError(
            f"the run's folder {folder} lies in {images}, so its sample images would become "
            "training images: choose another folder with --out, and move an existing run there"
        )
    resumable = (folder / TRAINING_STATE).exists()
    if resume and not resumable:
        raise ValueError(f"there is no run to resume in {folder}")
    if not resume:
        check_no_run(folder)
    weights = weights_path(folder, {})
    try:
        weights.name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"the name of the folder {str(folder)!r} is not UTF-8, and the weights are named after "
            "it: choose another folder with --out"
        ) from None
    if weights.exists() and not resume:
        raise ValueError(
            f"{folder} holds the weights {weights.name} but no run to resume: choose another "
            f"folder with --out, and --from {weights} to start from these weights"
        )
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise ValueError(f"{folder} is a file or lies in one: choose another folder with --out")
    return folder


def check_resume_options(
    resumed: ModelConfig,
    size: int | None,
    grey: bool,
    start_from: Path | None,
    hold_out: int | None,
    held_out: int | None,
) -> None:
    """Raise ``ValueError`` if the options contradict the run to resume.

    Done before the images are read, which may take long.

    Args:
        resumed: The run's network.
        size: The option ``--size``.
        grey: The option ``--grey``.
        start_from: The option ``--from``.
        hold_out: The option ``--hold-out``.
        held_out: The number of images that the run holds out, if known.
    """
    if start_from:
        raise ValueError(
            "--from starts a new run and --resume continues one: leave one of them out"
        )
    if size is not None and size != resumed.height:
        raise ValueError(f"the run's images have {resumed.height} pixels a side: leave out --size")
    if grey and resumed.channels != 1:
        raise ValueError("the run's images have colours: leave out --grey")
    if None not in (hold_out, held_out) and hold_out != held_out:
        raise ValueError(f"the run holds out {held_out} images: leave out --hold-out")
