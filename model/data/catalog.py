"""Published data sets: their classes, files, checksums and addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from scanline.model.config import CIFAR10_CLASSES, DIGITS


@dataclass(frozen=True)
class PublishedFile:
    """A file of a data set.

    Attributes:
        name: Its name, uncompressed.
        records: Number of its images or labels.
        sha256: SHA-256 of the uncompressed file.
        original_md5: MD5 that the authors publish, if ``sha256`` is of a reconstruction instead. A
            list beside the reconstruction, ``STEM.inexact.json``, names its approximate records.
    """

    name: str
    records: int
    sha256: str
    original_md5: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishedSet:
    """A published data set.

    Attributes:
        name: Name in commands and messages.
        classes: Name of each label.
        shape: Height, width and channels of an image.
        layout: Format of the files: ``idx`` has a file of images and one of labels, as MNIST;
            ``cifar`` has records of a label and the planes of an image, as CIFAR-10.
        splits: Files of ``train`` and ``test``, in order.
        folders: Sub-folders of a search path that may hold the files; downloads go into the first.
            ``.`` only if no other data set has files of these names.
        url: Folder of the downloads.
        downloads: SHA-256 of each downloaded file.
        archive: Downloaded archive that holds all files; empty if there is none.
    """

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    layout: Literal["idx", "cifar"]
    splits: Mapping[str, tuple[PublishedFile, ...]]
    folders: tuple[str, ...]
    url: str
    downloads: Mapping[str, str]
    archive: str = ""


_MNIST = PublishedSet(
    name="mnist",
    classes=DIGITS,
    shape=(28, 28, 1),
    layout="idx",
    splits={
        "train": (
            PublishedFile(
                "train-images-idx3-ubyte", 60_000,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            PublishedFile(
                "train-labels-idx1-ubyte", 60_000,
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
        ),
        "test": (
            PublishedFile(
                "t10k-images-idx3-ubyte", 10_000,
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            PublishedFile(
                "t10k-labels-idx1-ubyte", 10_000,
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
    },
    folders=("mnist", "MNIST/raw", "."),
    # A mirror, because the authors' server refuses downloads.
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    downloads={
        "train-images-idx3-ubyte.gz":
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz":
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz":
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz":
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
)  # fmt: skip
_CIFAR10 = PublishedSet(
    name="cifar10",
    classes=CIFAR10_CLASSES,
    shape=(32, 32, 3),
    layout="cifar",
    splits={
        "train": tuple(
            PublishedFile(f"data_batch_{number}.bin", 10_000, sha256)
            for number, sha256 in enumerate(
                (
                    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                ),
                start=1,
            )
        ),
        "test": (
            PublishedFile(  # a reconstruction from public copies of the images
                "test_batch.bin", 10_000,
                "12b72019dddc66aa680d9654ddcc864aa808e6540641e0887054d04d415d6427",
                original_md5="803d5f7f4d78ea53de84dbe85f74fb6d",
            ),
        ),
    },
    folders=("cifar-10", "cifar10", "cifar-10-batches-bin", "."),
    url="https://www.cs.toronto.edu/~kriz/",
    downloads={
        "cifar-10-binary.tar.gz":
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    },
    archive="cifar-10-binary.tar.gz",
)  # fmt: skip

PUBLISHED: dict[str, PublishedSet] = {each.name: each for each in (_MNIST, _CIFAR10)}


def one_of(names: Iterable[str]) -> str:
    """Return the names as a choice in a sentence, such as ``a, b or c``."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
