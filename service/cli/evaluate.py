"""``scanline evaluate``: likelihood of real images, quality of samples, cost of a precision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scanline.model.data.catalog import PUBLISHED, one_of
from scanline.service.cli.options import (
    DataDir,
    Download,
    Guidance,
    ImagesDir,
    ModelName,
    TopP,
    WeightsDir,
    check_compatible,
    given_flags,
    limit_seed,
)

if TYPE_CHECKING:
    from scanline.model.checkpoint import Checkpoint, SamplingDefaults
    from scanline.model.data.dataset import Dataset
    from scanline.model.evaluation.classifier import Classifier
    from scanline.model.training.datasets import DataSource

# Options that choose the model and the images, in every mode.
COMMON_OPTIONS = {"model", "dataset", "images", "weights", "data_dir", "download"}
# The other options of each mode. The first mode is the likelihood of a test set.
MODE_OPTIONS = {
    "": ("--label", "--limit", "--record"),
    "--precision": ("--limit", "--record"),
    "--samples": (
        "--label", "--guidance", "--top-p", "--temperature", "--seed", "--epochs", "--set-defaults",
    ),
    "--holes": ("--top-p", "--epochs"),
}  # fmt: skip
PARTICLES = (1, 8, 64)  # numbers of particles that --holes compares


def evaluate(
    context: typer.Context,
    model: ModelName = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help=f"{one_of(PUBLISHED)}. Default: the one with the model's classes.",
            rich_help_panel="Data",
        ),
    ] = None,
    images: ImagesDir = None,
    label: Annotated[
        bool,
        typer.Option(
            "--label",
            help="Condition on the true label. With --samples: each class in turn, or in the "
            "proportions of the folder's images.",
        ),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only LIMIT images, evenly spaced.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write the result into the checkpoint's metadata.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Evaluate this number of samples instead, with a classifier that is trained the "
            "first time and then kept.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Measure the loss of the native backend in float32, bf16, int16, int8 or int10 "
            "instead. With --record, the model uses this precision from then on."
        ),
    ] = None,
    holes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Complete holes in this number of test images instead, with 1, 8 and 64 "
            "particles.",
        ),
    ] = None,
    guidance: Guidance = None,
    top_p: TopP = None,
    temperature: Annotated[float, typer.Option(help="Of samples, 0 to 2.")] = 1.0,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            callback=limit_seed(64),
            help="Sample j is drawn with the seed SEED + j.",
        ),
    ] = 0,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Training epochs of the classifier.")
    ] = None,
    set_defaults: Annotated[
        bool,
        typer.Option("--set-defaults", help="Make this guidance and top_p the model's defaults."),
    ] = False,
    weights: WeightsDir = None,
    data_dir: DataDir = None,
    download: Download = False,
) -> None:
    """Measure a model's exact bits/dim on a test set, or the quality of its samples.

    If the model was trained on --images, the images held out then are its test set.
    """
    from scanline.kernels.native.abi import precision_of
    from scanline.model.checkpoint import load_by_name
    from scanline.model.evaluation.precision import MIN_LIMITED_IMAGES
    from scanline.model.training.datasets import DataSource

    given = given_flags(context, ignored=COMMON_OPTIONS)
    mode = "--precision" if precision else "--samples" if samples else "--holes" if holes else ""
    check_compatible(mode or "the bits/dim of a test set", given, *MODE_OPTIONS[mode])
    if precision:
        precision_of(precision)
    if record and limit and not (precision and limit >= MIN_LIMITED_IMAGES):
        raise ValueError(
            "--record needs the whole test set or, with --precision, at least "
            f"{MIN_LIMITED_IMAGES:,} images: leave --limit out, or raise it"
        )
    checkpoint = load_by_name(weights, model)
    source = DataSource(dataset, images, data_dir, download)
    if holes:
        _evaluate_inpainting(checkpoint, source, holes, top_p, epochs)
    elif samples:
        sampling = _sampling_defaults(checkpoint, label, guidance, top_p, temperature)
        _evaluate_samples(checkpoint, source, samples, label, sampling, temperature, seed, epochs)
        if set_defaults:
            _set_defaults(checkpoint, weights, sampling, label)
    elif precision:
        _measure_precision(checkpoint, source, precision, limit, record, weights)
    else:
        _evaluate_likelihood(checkpoint, source, label, limit, record, weights)


def _evaluate_likelihood(
    checkpoint: Checkpoint, source: DataSource, with_label: bool, limit: int | None, record: bool,
    weights: Path | None,
) -> None:  # fmt: skip
    """Print the bits/dim of test images, and record it if ``record`` is set."""

    from scanline.model.evaluation.records import evaluate_checkpoint, record_evaluation
    from scanline.model.progress import show_progress

    data = _load_test_data(checkpoint, source, limit)
    if record and data.seen:
        raise ValueError(
            f"--record needs images that {checkpoint.name} was not trained on, and it was trained "
            f"on all of {data.title}: leave --record out, or use other images"
        )
    with show_progress(len(data), "image") as bar:
        result = evaluate_checkpoint(checkpoint, data, with_label=with_label, progress=bar.update)
    condition = "with the true label" if with_label else "without a label"
    typer.echo(f"{_title(checkpoint, data)}: {result}, {condition}{_note(data)}")
    if record:
        path = record_evaluation(checkpoint, weights, data, result, with_label=with_label)
        _echo_recorded(path)


def _measure_precision(
    checkpoint: Checkpoint, source: DataSource, precision: str, limit: int | None, record: bool,
    weights: Path | None,
) -> None:  # fmt: skip
    """Print the bits/dim that a precision costs, and record it if ``record`` is set."""

    from scanline.model.evaluation.precision import measure_precision_cost
    from scanline.model.evaluation.records import record_precision
    from scanline.model.progress import show_progress

    data = _load_test_data(checkpoint, source, limit)
    with show_progress(len(data), "image") as bar:
        cost = measure_precision_cost(checkpoint.model, data, precision, progress=bar.update)
    typer.echo(f"{_title(checkpoint, data)}: {cost}{_note(data)}")
    if record:
        _echo_recorded(record_precision(checkpoint, weights, cost))


def _evaluate_inpainting(
    checkpoint: Checkpoint, source: DataSource, count: int, top_p: float | None, epochs: int | None
) -> None:
    """Print the quality of completions of test images, by hole and number of particles."""
    from scanline.model.evaluation.classifier import (
        accuracy,
        has_classes_to_learn,
        majority_accuracy,
        reliability_warning,
    )
    from scanline.model.evaluation.inpainting import InpaintingResult, evaluate_inpainting

    def echo(result: InpaintingResult) -> None:
        right = "" if result.class_accuracy is None else f", {result.class_accuracy:.1%} right"
        typer.echo(
            f"{result.hole:16} {result.particles:3} particles: squared error "
            f"{result.squared_error:.4f}{right}, {result.bits_per_dim:.4f} bits/dim, "
            f"{result.seconds:.3f} s per image"
        )

    top_p = _sampling_defaults(checkpoint, False, None, top_p).top_p
    training, test = _load_classifier_data(checkpoint, source)
    subset = test.evenly_spaced(count)
    typer.echo(
        f"{_title(checkpoint, test)}, {len(subset)} test images, top_p {top_p:g}{_note(test)}"
    )
    classifier = _load_classifier(training, epochs) if has_classes_to_learn(training) else None
    evaluate_inpainting(
        checkpoint, subset, PARTICLES, top_p=top_p, classifier=classifier, on_result=echo
    )
    if classifier and (
        warning := reliability_warning(accuracy(classifier, test), majority_accuracy(test))
    ):
        typer.echo(f"shares of right classes: {warning}")


def _evaluate_samples(
    checkpoint: Checkpoint, source: DataSource, samples: int, with_label: bool,
    sampling: SamplingDefaults, temperature: float, seed: int, epochs: int | None,
) -> None:  # fmt: skip
    """Print the quality of samples."""

    from scanline.model.evaluation.sample_quality import (
        check_samples,
        evaluate_samples,
        has_balanced_classes,
    )
    from scanline.model.progress import show_progress

    training, test = _load_classifier_data(checkpoint, source)
    check_samples(checkpoint.model.config, training, test, samples, with_label)
    classifier = _load_classifier(training, epochs)
    with show_progress(2 * samples, "image", desc="samples") as bar:
        quality = evaluate_samples(
            checkpoint, classifier, training, test, samples, with_label=with_label,
            sampling=sampling, temperature=temperature, seed=seed, progress=bar.update,
        )  # fmt: skip
    labels = "no label"
    if with_label:
        balanced = has_balanced_classes(test)
        classes = "each class in turn" if balanced else "classes in the test images' proportions"
        labels = f"{classes}, guidance {sampling.guidance:g}"
    typer.echo(
        f"{_title(checkpoint, test)}, {samples:,} samples, {labels}, top_p {sampling.top_p:g}, "
        f"temperature {temperature:g}, seeds from {seed}{_note(test)}:\n{quality}"
    )


def _sampling_defaults(
    checkpoint: Checkpoint, with_label: bool, guidance: float | None, top_p: float | None,
    temperature: float = 1.0,
) -> SamplingDefaults:  # fmt: skip
    """Resolve the guidance and top_p; raises ``ValueError``, also for the temperature."""
    from scanline.model.checkpoint import SamplingDefaults
    from scanline.model.sampling import SamplingOptions, resolve

    options = SamplingOptions(
        label=0 if with_label else None, top_p=top_p, guidance=guidance, temperature=temperature
    )
    params = resolve(checkpoint.model.config, checkpoint.defaults, options)
    return SamplingDefaults(params.guidance, params.top_p)


def _set_defaults(
    checkpoint: Checkpoint, weights: Path | None, sampling: SamplingDefaults, with_label: bool
) -> None:
    """Record sampling defaults; without labels, keep the model's guidance."""
    from scanline.model.evaluation.records import record_defaults

    if not with_label:
        sampling = sampling._replace(guidance=checkpoint.defaults.guidance)
    _echo_recorded(record_defaults(checkpoint, weights, sampling))


def _load_test_data(checkpoint: Checkpoint, source: DataSource, limit: int | None) -> Dataset:
    from scanline.model.training.datasets import load_test_data

    data = load_test_data(checkpoint.model.config, checkpoint.facts, source)
    return data.evenly_spaced(limit) if limit else data


def _load_classifier_data(checkpoint: Checkpoint, source: DataSource) -> tuple[Dataset, Dataset]:
    """Load the classifier's training images and the test images."""
    from scanline.model.training.datasets import load_classifier_data

    return load_classifier_data(checkpoint.model.config, checkpoint.facts, source)


def _load_classifier(training: Dataset, epochs: int | None) -> Classifier:
    """Load the classifier of these images, or train it with a progress bar."""
    import torch

    from scanline.model.evaluation.classifier import ClassifierConfig, load_or_train
    from scanline.model.progress import show_progress

    config = ClassifierConfig.for_dataset(training, epochs)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    total = config.epochs * len(training)
    with show_progress(total, "image", desc="classifier", leave=False, delay=1) as bar:
        return load_or_train(training, config, device, bar.update)


def _title(checkpoint: Checkpoint, data: Dataset) -> str:
    return f"{checkpoint.name} on {data.title}"


def _note(data: Dataset) -> str:
    return f" ({data.note})" if data.note else ""


def _echo_recorded(path: Path) -> None:
    typer.echo(f"recorded in {path}", err=True)
