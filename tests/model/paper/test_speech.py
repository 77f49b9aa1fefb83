"""Tests of table 3: features, corpora, CTC, encoders and synthetic digits."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from scanline.model.data.download import DataError
from scanline.model.paper.speech.corpus import Utterance, read_corpus
from scanline.model.paper.speech.ctc import collapse, ctc_loss, edit_distance, greedy_decode
from scanline.model.paper.speech.digits import speak, synthesise
from scanline.model.paper.speech.encoder import KINDS, Encoder, Sizes
from scanline.model.paper.speech.features import BANDS, log_mel, mel_filters, to_mel
from scanline.model.paper.speech.table import TABLE3, EncoderTraining
from tests.conftest import assert_close
from tests.service.cli.command_line import run_command

CPU = torch.device("cpu")
SIZES = Sizes(stack=2, n_layers=1, n_heads=2, d_model=16, lstm_layers=1, lstm_size=8)
TASK = replace(TABLE3.quick, sizes=SIZES, batch=4, learning_rate=2e-2, lstm_learning_rate=5e-2)

every_kind = pytest.mark.parametrize("kind", KINDS)
needs_espeak = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="espeak-ng is not installed"
)


def write_speech(folder: Path, train: int = 24, test: int = 8) -> Path:
    """Write a learnable corpus: a phoneme is four frames in which its feature is high."""
    generator = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        (folder / split).mkdir(parents=True)
        for number in range(count):
            steps = generator.integers(1, 4, generator.integers(2, 6))
            phonemes = steps.cumsum() % 4  # no phoneme is repeated
            frames = np.repeat(np.eye(4, dtype=np.float32)[phonemes], 4, 0)
            noise = 0.1 * generator.standard_normal(frames.shape, np.float32)
            np.save(folder / split / f"{number}.npy", frames + noise)
            (folder / split / f"{number}.txt").write_text(
                " ".join("abcd"[i] for i in phonemes) + "\n"
            )
    return folder


# --- features -------------------------------------------------------------------------------------


def test_mel_filters_are_triangles_evenly_spaced_in_mel() -> None:
    assert float(to_mel(torch.tensor(1000.0))) == pytest.approx(1000, abs=0.1)
    bins, rate = 4097, 16000
    filters = mel_filters(bins, rate)
    assert filters.shape == (BANDS, bins)
    hertz = torch.linspace(0, rate / 2, bins)
    centres = hertz[filters.argmax(1)]
    spacing = to_mel(centres).diff()
    torch.testing.assert_close(spacing, spacing.mean().expand(BANDS - 1), rtol=0.05, atol=0)
    between = (hertz >= centres[0]) & (hertz <= centres[-1])
    assert_close(filters.sum(0)[between], torch.ones(int(between.sum())))
    assert ((filters > 0).sum(0) <= 2).all()


@pytest.mark.parametrize(("rate", "band"), [(16000, 8), (22050, 25)])
def test_log_mel_of_tone_peaks_in_its_band_and_scales_with_energy(rate: int, band: int) -> None:
    bins = mel_filters(8193, rate)
    tone = float(torch.linspace(0, rate / 2, 8193)[bins[band].argmax()])
    sound = 0.25 * torch.sin(2 * math.pi * tone * torch.arange(rate) / rate)
    features = log_mel(sound, rate)
    assert features.shape == (1 + rate // round(0.01 * rate), BANDS)
    inside = features[5:-5]
    assert (inside.argmax(1) == band).all()
    louder = log_mel(2 * sound, rate)[5:-5, band] - inside[:, band]
    assert_close(louder, torch.full_like(louder, math.log(4)))
    assert log_mel(torch.zeros(rate), rate).isfinite().all()


# --- CTC ------------------------------------------------------------------------------------------


def test_frames_collapse_to_phonemes() -> None:
    assert collapse([0, 1, 1, 0, 1, 2, 2, 0]) == [1, 1, 2]
    assert collapse([3, 3, 3]) == [3]
    assert collapse([0, 0]) == collapse([]) == []


@pytest.mark.parametrize(
    ("decoded", "reference", "errors"),
    [
        ("", "", 0), ("abc", "abc", 0), ("", "ab", 2), ("ab", "", 2), ("abc", "ac", 1),
        ("ac", "abc", 1), ("abc", "adc", 1), ("ab", "ba", 2), ("kitten", "sitting", 3),
        ("sunday", "saturday", 3), ("aab", "ab", 1),
    ],
)  # fmt: skip
def test_edit_distance(decoded: str, reference: str, errors: int) -> None:
    assert edit_distance([*map(ord, decoded)], [*map(ord, reference)]) == errors


class FixedEncoder(nn.Module):
    """Encoder that returns fixed log-probabilities."""

    def __init__(self, log_p: Tensor) -> None:
        super().__init__()
        self.log_p = log_p

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_p, lengths


def test_ctc_loss_sums_over_all_alignments() -> None:
    log_p = torch.randn(2, 5, 3).double().log_softmax(-1)
    batch = [Utterance(torch.zeros(5, 1), [1, 1]), Utterance(torch.zeros(3, 1), [2])]
    expected = []
    for row, utterance in zip(log_p, batch, strict=True):
        frames = len(utterance.features)
        paths = [
            row[range(frames), path].sum()
            for path in itertools.product(range(3), repeat=frames)
            if collapse(path) == utterance.phonemes
        ]
        expected.append(-torch.stack(paths).logsumexp(0) / len(utterance.phonemes))
    assert_close(ctc_loss(FixedEncoder(log_p), batch, CPU), torch.stack(expected).mean())


def test_greedy_decoding_ignores_padding() -> None:
    frames = torch.tensor([[1, 1, 0, 1], [2, 0, 3, 3]])
    batch = [Utterance(torch.zeros(n, 1), [1]) for n in (4, 2)]
    log_p = nn.functional.one_hot(frames, 4).float()
    assert [*greedy_decode(FixedEncoder(log_p), batch, CPU)] == [[1, 1], [2]]


# --- folders --------------------------------------------------------------------------------------


def test_corpus_is_read_with_normalized_features(tmp_path: Path) -> None:
    folder = write_speech(tmp_path / "speech")
    (folder / "train" / "notes.md").write_text("ignored")
    corpus = read_corpus(folder, 2)
    assert (len(corpus.train), len(corpus.test), corpus.features) == (24, 8, 4)
    assert corpus.phonemes == ["a", "b", "c", "d"]
    frames = torch.cat([utterance.features for utterance in corpus.train])
    assert frames.mean(0).abs().max() < 1e-5
    torch.testing.assert_close(frames.var(0), torch.ones(4), rtol=1e-2, atol=0)
    texts = sorted((folder / "test").glob("*.txt"))
    for utterance, text in zip(corpus.test, texts, strict=True):
        assert [corpus.phonemes[i - 1] for i in utterance.phonemes] == text.read_text().split()
        raised = utterance.features[::4].argmax(1) + 1
        assert raised.tolist() == utterance.phonemes


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("train/0.txt", None, r"0\.npy has no 0\.txt beside it"),
        ("test/1.npy", None, r"1\.txt has no 1\.npy beside it"),
        ("train/0.txt", b" \n", "has no phonemes"),
        ("train/0.txt", b"\xff\xfe", "not UTF-8"),
        ("train/0.txt", b"a a a a a a", r"steps of 2, but its 6 phonemes need 11"),
        ("train/0.npy", b"nothing", "not an array written by numpy.save"),
        ("train/0.npy", np.zeros(5, np.float32), r"must be floating-point features \[frames,"),
        ("train/0.npy", np.zeros((40, 4), np.int64), "must be floating-point features"),
        ("train/0.npy", np.zeros((0, 4), np.float32), "is empty"),
        ("train/0.npy", np.full((40, 4), np.nan), "not finite"),
        ("test/0.npy", np.zeros((40, 5)), r"0\.npy has 5 .* has 4|has 4 .* has 5"),
    ],
)  # fmt: skip
def test_malformed_corpus_is_rejected(name: str, content: Any, error: str, tmp_path: Path) -> None:
    folder = write_speech(tmp_path / "speech", 2, 2)
    if content is None:
        (folder / name).unlink()
    elif isinstance(content, bytes):
        (folder / name).write_bytes(content)
    else:
        np.save(folder / name, content)
    with pytest.raises(DataError, match=error):
        read_corpus(folder, 2)


def test_corpus_without_splits_or_utterances_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*train: a corpus has the folders"):
        read_corpus(tmp_path, 1)
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="holds no utterances"):
        read_corpus(tmp_path, 1)


# --- encoders -------------------------------------------------------------------------------------


@every_kind
def test_encoder_ignores_padding_and_is_bidirectional(kind: str) -> None:
    encoder = Encoder(kind, SIZES, 3, 5).double().eval()
    x, lengths = torch.randn(3, 91, 3).double(), torch.tensor([91, 20, 41])
    log_p, steps = encoder(x, lengths)
    assert log_p.shape == (3, 46, 6)
    assert steps.tolist() == [46, 10, 21]
    assert_close(log_p.exp().sum(-1), torch.ones(3, 46).double())
    for row, length, taken in zip(range(3), lengths.tolist(), steps.tolist(), strict=True):
        alone, _ = encoder(x[row : row + 1, :length], lengths[row : row + 1])
        assert_close(log_p[row : row + 1, :taken], alone)
    for position in (0, 19):  # in the row that every kind attends to fully
        changed = x.clone()
        changed[1, position] += 1
        difference = (encoder(changed, lengths)[0] - log_p).abs().amax(-1)
        assert (difference[1, :10] > 0).all()
        assert difference[0].max() == difference[2].max() == 0


def test_unknown_encoder_is_rejected() -> None:
    with pytest.raises(ValueError, match="unknown encoder 'lstm': choose bi-lstm, softmax"):
        Encoder("lstm", SIZES, 3, 5)


# --- the table ------------------------------------------------------------------------------------


def test_table_of_corpus_folder_is_trained_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(TABLE3, "quick", replace(TASK, training_seconds=10))
    monkeypatch.setattr(
        "scanline.model.paper.speech.table.timed", lambda run, device, repeats: run() or 1.0
    )
    folder = write_speech(tmp_path / "speech")
    command = ("paper", "table3", "--quick", "--out", tmp_path, "--speech", folder)
    assert run_command(*command) == 0
    report = json.loads((tmp_path / "table3.json").read_text())
    rows = report["rows"]
    assert report["complete"]
    assert rows["data"]["phonemes"] == 4
    assert {kind for kind in KINDS if rows[f"train {kind}"]["epochs"] == 10} == {*KINDS}
    for kind in KINDS:
        assert rows[f"train {kind}"]["error_rate"] < 0.2, kind  # of four phonemes
    assert TABLE3.table(rows) in capsys.readouterr().out
    assert "Measured on the corpus `speech`." in TABLE3.caption(report["settings"])
    with Image.open(tmp_path / "table3.png") as plot:
        assert min(plot.size) > 300
    before = (tmp_path / "table3.json").read_bytes()
    assert run_command(*command) == 0
    assert (tmp_path / "table3.json").read_bytes() == before
    assert run_command(*command[:-1], write_speech(tmp_path / "other", 2, 2)) == 1
    assert "holds rows of other settings" in capsys.readouterr().err


def test_training_is_deterministic(tmp_path: Path) -> None:
    corpus = read_corpus(write_speech(tmp_path), 2)
    weights = []
    for _ in range(2):
        training = EncoderTraining("linear", TASK, corpus, CPU)
        training.epoch()
        weights.append(nn.utils.parameters_to_vector(training.encoder.parameters()))
    assert torch.equal(*weights)


def result_rows(**error_rates: float) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for seconds, (kind, rate) in enumerate(error_rates.items(), 1):
        kind = kind.replace("_", "-")
        rows[f"epoch {kind}"] = {"kind": kind, "seconds": float(seconds)}
        rows[f"train {kind}"] = {"kind": kind, "error_rate": rate}
    return rows


def test_verdicts_follow_rows_of_table_3() -> None:
    rows = result_rows(linear=0.02, softmax=0.01, bi_lstm=0.05, lsh_4=0.2)
    verdicts = [*TABLE3.verdicts(rows)]
    assert [verdict.holds for verdict in verdicts] == [True, True, True]
    assert verdicts[0].claim.endswith("than lsh-4 (8.08 % : 9.33 %)")
    assert verdicts[0].found == "2.00 % : 20.00 %"
    assert verdicts[2].found == "bi-lstm 3 s, softmax 2 s, lsh-4 4 s, linear 1 s"
    rows = result_rows(softmax=0.01, linear=0.06, bi_lstm=0.05, lsh_4=0.2)
    assert [verdict.holds for verdict in TABLE3.verdicts(rows)] == [True, False, False]


# --- digits ---------------------------------------------------------------------------------------


@needs_espeak
def test_digits_are_synthesised_once_and_deterministically(tmp_path: Path) -> None:
    synthesise(tmp_path, 3, 2)
    corpus = read_corpus(tmp_path, 3)
    assert (len(corpus.train), len(corpus.test), corpus.features) == (3, 2, BANDS)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert len({content for path, content in files.items() if path.suffix == ".npy"}) == 5
    first, kept = sorted(path for path in files if path.suffix == ".txt")[:2]
    when = kept.stat().st_mtime_ns
    first.unlink()
    synthesise(tmp_path, 3, 2)
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


def test_missing_espeak_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_command("paper", "table3", "--quick", "--out", tmp_path) == 1
    error = capsys.readouterr().err
    assert (
        "install it (`apt install espeak-ng`), or use a corpus of your own with --speech" in error
    )
    assert not (tmp_path / "table3.json").exists()
