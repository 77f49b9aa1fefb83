"""Tests of synthetic speech."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from scanline.model.data.download import DataError
from scanline.model.paper.speech.corpus import read_corpus
from scanline.model.paper.speech.features import BANDS
from scanline.model.paper.speech.synthesis import WORDS, add_noise, speak, synthesise
from tests.service.cli.command_line import run_command

needs_espeak = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="espeak-ng is not installed"
)


@needs_espeak
def test_sentences_are_synthesised_once_and_deterministically(tmp_path: Path) -> None:
    synthesise(tmp_path, (3, 1, 2), (2, 3))
    corpus = read_corpus(tmp_path, 3)
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (3, 1, 2)
    assert corpus.features == BANDS
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert len({content for path, content in files.items() if path.suffix == ".npy"}) == 6
    first, kept = sorted(path for path in files if path.suffix == ".txt")[:2]
    when = kept.stat().st_mtime_ns
    first.unlink()
    synthesise(tmp_path, (3, 1, 2), (2, 3))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == files
    assert kept.stat().st_mtime_ns == when


@needs_espeak
def test_speak_returns_sound_and_phonemes() -> None:
    sound, rate, phonemes = speak("one two six", "en-us", 150, 50)
    assert phonemes == ["w", "ʌ", "n", "t", "uː", "s", "ɪ", "k", "s"]
    assert 0.5 < len(sound) / rate < 5
    assert 0.1 < sound.abs().max() <= 1
    slow, _, _ = speak("one two six", "en-us", 100, 50)
    assert len(slow) > len(sound)
    with pytest.raises(DataError, match="espeak-ng failed"):
        speak("one", "no such voice", 150, 50)


def test_noise_has_the_wanted_energy_and_color() -> None:
    generator = torch.Generator().manual_seed(0)
    sound = torch.sin(torch.arange(2**15) / 5)
    for decibels in (0.0, 10.0):
        noise = add_noise(sound, decibels, 1.0, generator) - sound
        ratio = 10 * (sound.square().mean() / noise.square().mean()).log10()
        assert float(ratio) == pytest.approx(decibels, abs=0.01)
    low_share = []
    for tilt in (0.0, 1.0):
        energy = torch.fft.rfft(add_noise(sound, 0.0, tilt, generator) - sound).abs().square()
        low_share.append(float(energy[: len(energy) // 8].sum() / energy.sum()))
    assert low_share[0] == pytest.approx(1 / 8, rel=0.1)
    assert low_share[1] > 0.7
    assert len(WORDS) == len(set(WORDS)) > 400


def test_missing_espeak_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_command("paper", "table3", "--quick", "--out", tmp_path) == 1
    error = capsys.readouterr().err
    assert (
        "install it (`apt install espeak-ng`), or use a corpus of your own with --speech" in error
    )
    assert not [*tmp_path.rglob("*.json")]
