"""``scanline evaluate``: a model's likelihood of real images, or a judge's view of its samples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scanline.service.cli.options import (
    DataDir,
    Download,
    Guidance,
    ImagesDir,
    ModelName,
    TopP,
    WeightsDir,
    check_compatible,
    reject_nan,
)

if TYPE_CHECKING:
    from scanline.model.checkpoint import Checkpoint, SamplingDefaults
    from scanline.model.data.dataset import Dataset
    from scanline.model.evaluation.classifier import Classifier
    from scanline.model.evaluation.likelihood import Evaluation
    from scanline.model.evaluation.precision import PrecisionCost

# What else each of its modes takes; the first is the figure of a test set.
TAKES = {
    "": ("--label", "--limit", "--record"),
    "--precision": ("--limit", "--record"),
    "--samples": (
        "--label", "--guidance", "--top-p", "--temperature", "--seed", "--epochs", "--set-defaults",
    ),
    "--holes": ("--epochs",),
}  # fmt: skip


def evaluate(
    model: ModelName = None,
    dataset: Annotated[
        str | None, typer.Option(help="mnist or cifar10; by the model's classes if none")
    ] = None,
    images: ImagesDir = None,
    label: Annotated[
        bool,
        typer.Option(
            "--label",
            help="Give the true label too; to samples, each in turn, or as a folder's images have.",
        ),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write the figure into the checkpoint's metadata.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Judge so many drawn images instead, by a classifier that is trained the first "
            "time and kept.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Measure what the native backend loses in float32, bf16, int16 or int8 instead; "
            "with --record the model is drawn in that from then on."
        ),
    ] = None,
    holes: Annotated[
        int | None,
        typer.Option(min=1, help="Complete holes in so many test images, by 1, 8, 64 particles."),
    ] = None,
    guidance: Guidance = None,
    top_p: TopP = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, max=2.0, callback=reject_nan, help="Of samples; 1 if none."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**64 - 1, help="Sample j has seed + j; 0 if none."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="How often the classifier sees its training images.")
    ] = None,
    set_defaults: Annotated[
        bool, typer.Option("--set-defaults", help="Make this guidance and top_p the model's own.")
    ] = False,
    weights: WeightsDir = None,
    data_dir: DataDir = None,
    download: Download = False,
) -> None:
    """Measure a model's exact bits/dim on a test set, or judge its samples.

    Of --images that it was trained on, those held out then are its test set.
    """
    from scanline.kernels.native.abi import precision_of
    from scanline.model.checkpoint import SamplingDefaults, load_by_name
    from scanline.model.decoders.reference import ReferenceDecoder
    from scanline.model.evaluation.records import (
        record_defaults,
        record_evaluation,
        record_precision,
    )
    from scanline.model.sampling import SamplingOptions, resolve
    from scanline.model.training.datasets import load_judge_data, load_test_data

    given = {
        "--label": label or None, "--limit": limit, "--record": record or None,
        "--samples": samples, "--precision": precision, "--holes": holes, "--guidance": guidance,
        "--top-p": top_p, "--temperature": temperature, "--seed": seed, "--epochs": epochs,
        "--set-defaults": set_defaults or None,
    }  # fmt: skip
    mode = "--precision" if precision else "--samples" if samples else "--holes" if holes else ""
    check_compatible(mode or "a test set's figure", given, *TAKES[mode])
    if precision:
        precision_of(precision)
    if record and limit:
        raise ValueError("--record is for the whole set: leave --limit out")
    checkpoint = load_by_name(weights, model)
    config, facts, own = checkpoint.model.config, checkpoint.facts, checkpoint.defaults
    if (samples or holes) and (why := ReferenceDecoder.unsupported(config)):
        raise ValueError(why)
    where = (dataset, images, data_dir, download)
    if holes:
        _complete(checkpoint, *load_judge_data(config, facts, *where), holes, epochs)
    elif samples:
        options = SamplingOptions(label=0 if label else None, top_p=top_p, guidance=guidance)
        params = resolve(config, own, options)
        style = SamplingDefaults(params.guidance, params.top_p)
        heat = 1.0 if temperature is None else temperature
        both = load_judge_data(config, facts, *where)
        _judge(checkpoint, *both, samples, label, style, heat, seed or 0, epochs)
        if set_defaults:
            style = style if label else style._replace(guidance=own.guidance)
            _recorded(record_defaults(checkpoint, weights, style))
    else:
        data = load_test_data(config, facts, *where)
        data = data.take(slice(limit)) if limit else data
        if record and data.seen and not precision:
            raise ValueError(
                f"--record is for images that it was not trained on, and {checkpoint.name} was on "
                f"all of {data.title}: leave --record out, or measure on others"
            )
        if precision:
            cost = _cost(checkpoint, data, precision)
            path = record_precision(checkpoint, weights, cost) if record else None
        else:
            figure = _measure(checkpoint, data, label)
            path = None
            if record:
                path = record_evaluation(checkpoint, weights, data, figure, with_label=label)
        if path:
            _recorded(path)


def _recorded(path: Path) -> None:
    typer.echo(f"recorded in {path}", err=True)


def _measure(checkpoint: Checkpoint, data: Dataset, with_label: bool) -> Evaluation:
    from tqdm import tqdm

    from scanline.model.evaluation.records import evaluate_checkpoint

    with tqdm(total=len(data), unit="image", file=sys.stderr) as bar:
        figure = evaluate_checkpoint(checkpoint, data, with_label=with_label, progress=bar.update)
    how = "with the true label" if with_label else "without a label"
    typer.echo(f"{_pair(checkpoint, data)}: {figure}, {how}{_noted(data)}")
    return figure


def _cost(checkpoint: Checkpoint, data: Dataset, precision: str) -> PrecisionCost:
    from tqdm import tqdm

    from scanline.model.evaluation.precision import measure_precision_cost

    with tqdm(total=len(data), unit="image", file=sys.stderr) as bar:
        cost = measure_precision_cost(checkpoint.model, data, precision, progress=bar.update)
    typer.echo(f"{_pair(checkpoint, data)}: {cost}{_noted(data)}")
    return cost


def _pair(checkpoint: Checkpoint, data: Dataset) -> str:
    return f"{checkpoint.name} on {data.title}"


def _noted(data: Dataset) -> str:
    return f" ({data.note})" if data.note else ""


def _classifier(training: Dataset, epochs: int | None) -> Classifier:
    """Train the judge, or take the one that is kept."""
    import torch
    from tqdm import tqdm

    from scanline.model.evaluation.classifier import ClassifierConfig, load_or_train

    recipe = ClassifierConfig.for_dataset(training, epochs)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tqdm(
        total=recipe.epochs * len(training), unit="image", desc="classifier", file=sys.stderr,
        leave=False, delay=1,
    ) as bar:  # fmt: skip
        return load_or_train(training, recipe, device, bar.update)


def _complete(
    checkpoint: Checkpoint, training: Dataset, test: Dataset, count: int, epochs: int | None
) -> None:
    from scanline.model.evaluation.classifier import (
        accuracy,
        has_classes_to_learn,
        majority_accuracy,
        reliability_warning,
    )
    from scanline.model.evaluation.inpainting import InpaintingResult, evaluate_inpainting
    from scanline.model.evaluation.sample_quality import evenly_spaced

    def tell(one: InpaintingResult) -> None:
        right = "" if one.class_accuracy is None else f", {one.class_accuracy:.1%} right"
        typer.echo(
            f"{one.hole:16} {one.particles:3} particles: squared error {one.squared_error:.4f}"
            f"{right}, {one.bits_per_dim:.4f} bits/dim, {one.seconds:.3f} s a picture"
        )

    some = evenly_spaced(test, min(count, len(test)))
    typer.echo(f"{_pair(checkpoint, test)}, {len(some)} test images{_noted(test)}")
    classifier = _classifier(training, epochs) if has_classes_to_learn(training) else None
    evaluate_inpainting(checkpoint, some, (1, 8, 64), classifier=classifier, on_result=tell)
    if classifier and (
        doubted := reliability_warning(accuracy(classifier, test), majority_accuracy(test))
    ):
        typer.echo(f"of what is right, {doubted}")


def _judge(
    checkpoint: Checkpoint, training: Dataset, test: Dataset, samples: int, with_label: bool,
    style: SamplingDefaults, temperature: float, seed: int, epochs: int | None,
) -> None:  # fmt: skip
    from tqdm import tqdm

    from scanline.model.evaluation.sample_quality import (
        check_samples,
        evaluate_samples,
        has_balanced_classes,
    )

    check_samples(checkpoint.model.config, training, test, samples, with_label)
    classifier = _classifier(training, epochs)
    with tqdm(total=2 * samples, unit="image", desc="samples", file=sys.stderr) as bar:
        quality = evaluate_samples(
            checkpoint, classifier, training, test, samples, with_label=with_label, sampling=style,
            temperature=temperature, seed=seed, progress=bar.update,
        )  # fmt: skip
    of = "no label"
    if with_label:
        shares = (
            "each class in turn"
            if has_balanced_classes(test)
            else "classes as the test images have them"
        )
        of = f"{shares}, guidance {style.guidance:g}"
    typer.echo(
        f"{_pair(checkpoint, test)}, {samples:,} samples, {of}, top_p {style.top_p:g}, temperature "
        f"{temperature:g}, seeds from {seed}{_noted(test)}:\n{quality}"
    )
