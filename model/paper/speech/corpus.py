"""Speech corpora: features and phonemes of utterances, read from a folder.

The folder has the sub-folders ``train``, ``validation`` and ``test``. An utterance consists of two
files: ``NAME.npy``, floating-point features ``[frames, features]`` written by ``numpy.save``, and
``NAME.txt``, its phonemes separated by spaces, in UTF-8. The number of features is the same for all
utterances, any word can be a phoneme, and other files are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scanline.model.data.download import DataError

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Utterance:
    """Features, float32 ``[frames, features]``, and the indices of the phonemes, from 1."""

    features: Tensor
    phonemes: list[int]


@dataclass(frozen=True)
class Corpus:
    """Training, validation and test utterances; phoneme i is ``phonemes[i - 1]``, 0 the CTC blank.

    Features are normalized to mean 0 and variance 1 over the training frames.
    """

    train: list[Utterance]
    validation: list[Utterance]
    test: list[Utterance]
    phonemes: list[str]

    @property
    def features(self) -> int:
        """Number of features per frame."""
        return self.train[0].features.shape[1]


def read_corpus(folder: Path, stack: int) -> Corpus:
    """Read a corpus.

    Args:
        folder: Folder of the corpus.
        stack: Number of frames that the encoder will combine into one step.

    Raises:
        DataError: If files are missing or malformed, or an utterance has too few steps for CTC to
            align its phonemes.
    """
    read = {split: _read_split(folder / split) for split in SPLITS}
    everything = {name: found for split in SPLITS for name, found in read[split].items()}
    sizes = {features.shape[1]: path for path, (features, _) in everything.items()}
    if len(sizes) > 1:
        (one, first), (other, second), *_ = sizes.items()
        raise DataError(
            f"all frames must have as many features: {first} has {one} and {second} has {other}"
        )
    for path, (features, phonemes) in everything.items():
        steps = -(-len(features) // stack)
        # CTC needs a blank between two equal phonemes.
        needed = len(phonemes) + sum(a == b for a, b in pairwise(phonemes))
        if needed > steps:
            raise DataError(
                f"{path} has {len(features)} frames, which are {steps} steps of {stack}, but its "
                f"{len(phonemes)} phonemes need {needed} steps: remove it, or use shorter frames"
            )
    names = sorted({name for _, phonemes in everything.values() for name in phonemes})
    number = {name: i for i, name in enumerate(names, 1)}
    frames = torch.cat([features for features, _ in read["train"].values()])
    mean, deviation = frames.mean(0), frames.std(0, correction=0).clamp(min=1e-5)
    train, validation, test = (
        [
            Utterance((features - mean) / deviation, [number[name] for name in phonemes])
            for features, phonemes in read[split].values()
        ]
        for split in SPLITS
    )
    return Corpus(train, validation, test, names)


def _read_split(folder: Path) -> dict[Path, tuple[Tensor, list[str]]]:
    """Read a split: features and phoneme names by the path of the features."""
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}: a corpus has the folders {', '.join(SPLITS)}, with "
            "NAME.npy (features, [frames, features]) and NAME.txt (phonemes) for each utterance"
        )
    sounds, texts = ({path.stem: path for path in folder.glob(f"*.{e}")} for e in ("npy", "txt"))
    for stem in sorted(sounds.keys() ^ texts.keys()):
        existing, missing = (sounds[stem], "txt") if stem in sounds else (texts[stem], "npy")
        raise DataError(f"{existing} has no {stem}.{missing} beside it")
    if not sounds:
        raise DataError(f"{folder} holds no utterances: add NAME.npy and NAME.txt for each")
    return {
        path: (_read_features(path), _read_phonemes(texts[stem]))
        for stem, path in sorted(sounds.items())
    }


def _read_features(path: Path) -> Tensor:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not an array written by numpy.save: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind != "f":
        raise DataError(f"{path} must be floating-point features [frames, features]")
    if not array.size or not np.isfinite(array).all():
        raise DataError(f"{path} is empty or has features that are not finite")
    return torch.from_numpy(array.astype(np.float32))


def _read_phonemes(path: Path) -> list[str]:
    try:
        phonemes = path.read_text("utf-8").split()
    except ValueError as error:
        raise DataError(f"{path} is not UTF-8: {error}") from error
    if not phonemes:
        raise DataError(f"{path} has no phonemes: write them separated by spaces")
    return phonemes
