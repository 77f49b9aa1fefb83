"""Spoken digits, by espeak-ng in many voices: speech that anyone can have."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from scanline.model.atomic_files import write_atomically
from scanline.model.data.download import DataError
from scanline.model.paper.speech.features import log_mel

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VOICES = [*(f"en-us+m{n}" for n in range(1, 8)), *(f"en-us+f{n}" for n in range(1, 6))]
STRESS = str.maketrans("", "", "ˈˌ")


def synthesise(folder: Path, train: int, test: int) -> None:
    """Write so many utterances as a folder of speech; what is there already is not made anew.

    Each says 8 to 12 digits in a voice, speed and pitch of its own, all drawn from its number.
    Raises ``DataError`` where espeak-ng is missing or fails.
    """
    wanted = [("train", n) for n in range(train)] + [("test", n) for n in range(test)]
    for split, number in tqdm(wanted, desc="speaking", unit="", leave=False, disable=None):
        path = folder / split / f"{number:06}"
        if not path.with_suffix(".txt").exists():
            draw = random.Random(f"{split} {number}")
            said = " ".join(draw.choices(DIGITS, k=draw.randint(8, 12)))
            words, pitch = draw.randint(130, 210), draw.randint(20, 80)
            sound, rate, phonemes = speak(said, draw.choice(VOICES), words, pitch)
            file = io.BytesIO()
            np.save(file, log_mel(sound, rate).numpy())
            write_atomically(path.with_suffix(".npy"), file.getvalue())
            write_atomically(path.with_suffix(".txt"), f"{' '.join(phonemes)}\n".encode())


def speak(text: str, voice: str, words: int, pitch: int) -> tuple[Tensor, int, list[str]]:
    """Say a text, at ``words`` a minute: sound between -1 and 1, its rate in Hz, and its phonemes.

    Raises ``DataError`` where espeak-ng is missing or fails.
    """
    program = shutil.which("espeak-ng")
    if program is None:
        raise DataError(
            "espeak-ng, which speaks the digits, is not installed: install it (`apt install "
            "espeak-ng`), or give speech of your own with --speech FOLDER"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "said.wav"
        options = ["-v", voice, "-s", str(words), "-p", str(pitch), "-w", str(path)]
        command = [program, *options, "--ipa", "--sep= ", text]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not path.exists():
            raise DataError(f"espeak-ng failed: {done.stderr.strip() or done.returncode}")
        with wave.open(str(path)) as sound:
            rate, samples = sound.getframerate(), sound.readframes(sound.getnframes())
    heard = torch.from_numpy(np.frombuffer(samples, "<i2").astype(np.float32) / 2**15)
    return heard, rate, done.stdout.translate(STRESS).split()
