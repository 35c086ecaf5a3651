"""Small files in the official formats, and data sets made of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from pathlib import Path

import numpy as np

from tutti.data.dataset import DataSet, File
from tutti.data.sources import Source

IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_NAMES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
TRAIN, TEST, BATCH = 12, 8, 4  # samples in the idx files of both splits, and in a CIFAR batch


def random_bytes(*shape: int, below: int = 256, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, below, shape).astype(np.uint8)


def idx(values: np.ndarray) -> bytes:
    """An idx file of bytes."""
    return struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim, *values.shape) + values.tobytes()


def cifar_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels.reshape(-1, 1), images.reshape(len(labels), -1)], axis=1).tobytes()


def idx_files(train: int = TRAIN, test: int = TEST) -> dict[str, bytes]:
    images, labels = random_bytes(train + test, 28, 28), random_bytes(train + test, below=10)
    parts = (images[:train], labels[:train], images[train:], labels[train:])
    return {name: idx(part) for name, part in zip(IDX_NAMES, parts, strict=True)}


def cifar_files(count: int = BATCH) -> dict[str, bytes]:
    return {
        name: cifar_batch(random_bytes(count, 3, 32, 32, seed=seed), random_bytes(count, below=10, seed=seed))
        for seed, name in enumerate(CIFAR_NAMES)
    }


def sample_files(dataset: DataSet) -> dict[str, bytes]:
    """Small files under the names that the data set has."""
    return next(files for files in (idx_files(), cifar_files()) if set(files) == {file.name for file in dataset.files})


def write(contents: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def gzipped(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}


def tarred(contents: dict[str, bytes], folder: str) -> bytes:
    """A .tar.gz with the files in a folder, beside one that nobody asked for."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, content in {"readme.txt": b"hello", **contents}.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def make_data_set(contents: dict[str, bytes], *sources: Source, name: str = "mnist") -> DataSet:
    """A data set of just these files."""
    files = (
        File(key, len(content), hashlib.sha256(content).hexdigest(), hashlib.md5(content).hexdigest())
        for key, content in contents.items()
    )
    return DataSet(name, TRAIN, TEST, 10, tuple(files), sources, layouts=("MNIST/raw",))


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
