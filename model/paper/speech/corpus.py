"""Speech as features and phonemes, read from a folder.

The folder has two sub-folders, ``train`` and ``test``. An utterance is two files in one of them:
``NAME.npy``, floating-point features ``[frames, features]`` as ``numpy.save`` writes them, and
``NAME.txt``, its phonemes with spaces between, in UTF-8. Every frame has as many features as any
other, any word can be a phoneme, and other files are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scanline.model.data.download import DataError

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Utterance:
    """Features, float32 ``[frames, features]``, and the numbers of their phonemes, from 1."""

    features: Tensor
    phonemes: list[int]


@dataclass(frozen=True)
class Corpus:
    """Utterances to train on and to test with; phoneme i is ``phonemes[i - 1]``, 0 is CTC's blank.

    Each feature has mean 0 and variance 1 over the frames that are trained on.
    """

    train: list[Utterance]
    test: list[Utterance]
    phonemes: list[str]

    @property
    def features(self) -> int:
        """How many features a frame has."""
        return self.train[0].features.shape[1]


def read_corpus(folder: Path, stack: int) -> Corpus:
    """Read a folder, whose frames are taken ``stack`` at a time.

    Raises ``DataError``, with what to do about it, where files are missing or not as described
    above, or where an utterance has more phonemes than CTC can lay on its frames.
    """
    read = {split: _read_split(folder / split) for split in SPLITS}
    everything = {name: found for split in SPLITS for name, found in read[split].items()}
    sizes = {features.shape[1]: path for path, (features, _) in everything.items()}
    if len(sizes) > 1:
        (one, first), (other, second), *_ = sizes.items()
        raise DataError(f"{first} has {one} features a frame, {second} {other}: make them equal")
    for path, (features, phonemes) in everything.items():
        steps = -(-len(features) // stack)
        # CTC puts a blank between two that are the same.
        needed = len(phonemes) + sum(a == b for a, b in pairwise(phonemes))
        if needed > steps:
            raise DataError(
                f"{path} has {len(features)} frames, taken {stack} at a time {steps} steps, and "
                f"its {len(phonemes)} phonemes need {needed}: leave it out, or cut frames closer"
            )
    names = sorted({name for _, phonemes in everything.values() for name in phonemes})
    number = {name: i for i, name in enumerate(names, 1)}
    frames = torch.cat([features for features, _ in read["train"].values()])
    mean, deviation = frames.mean(0), frames.std(0, correction=0).clamp(min=1e-5)
    train, test = (
        [
            Utterance((features - mean) / deviation, [number[name] for name in phonemes])
            for features, phonemes in read[split].values()
        ]
        for split in SPLITS
    )
    return Corpus(train, test, names)


def _read_split(folder: Path) -> dict[Path, tuple[Tensor, list[str]]]:
    """Read one split's files: features and names of phonemes by the path of the features."""
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}: speech is a folder with `train` and `test`, and in them "
            "NAME.npy (features, [frames, features]) and NAME.txt (phonemes) of each utterance"
        )
    sounds, texts = ({path.stem: path for path in folder.glob(f"*.{e}")} for e in ("npy", "txt"))
    for stem in sorted(sounds.keys() ^ texts.keys()):
        there, lacks = (sounds[stem], "txt") if stem in sounds else (texts[stem], "npy")
        raise DataError(f"{there} has no {stem}.{lacks} beside it")
    if not sounds:
        raise DataError(f"{folder} holds no utterance: NAME.npy and NAME.txt of each go there")
    return {
        path: (_read_features(path), _read_phonemes(texts[stem]))
        for stem, path in sorted(sounds.items())
    }


def _read_features(path: Path) -> Tensor:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is no array that numpy.save wrote: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind != "f":
        raise DataError(f"{path} must be floating-point features [frames, features]")
    if not array.size or not np.isfinite(array).all():
        raise DataError(f"{path} has no features, or some that are not finite")
    return torch.from_numpy(array.astype(np.float32))


def _read_phonemes(path: Path) -> list[str]:
    try:
        phonemes = path.read_text("utf-8").split()
    except ValueError as error:
        raise DataError(f"{path} is not UTF-8: {error}") from error
    if not phonemes:
        raise DataError(f"{path} names no phoneme: write them with spaces between")
    return phonemes
