"""Official files are read as they are; whatever is wrong with one is a sentence that says what, and how to mend it."""

from __future__ import annotations

import gzip
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_data import cifar_batch, idx, random_bytes

from tutti.data.formats import read_cifar, read_idx, read_labelled_idx
from tutti.errors import UserError

REMEDY = "tutti data get mnist"
IMAGES, LABELS = random_bytes(5, 28, 28), random_bytes(5, below=10)
COLOURS = random_bytes(4, 3, 32, 32)


def labelled(folder: Path, images: bytes, labels: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    (folder / "images").write_bytes(images)
    (folder / "labels").write_bytes(labels)
    return read_labelled_idx(folder / "images", folder / "labels", (28, 28), 10, REMEDY)


# --- what is right ----------------------------------------------------------------------------------------------------


def test_idx_images_and_labels(tmp_path: Path) -> None:
    inputs, targets = labelled(tmp_path, idx(IMAGES), idx(LABELS))
    assert inputs.dtype == targets.dtype == torch.uint8
    assert np.array_equal(inputs.numpy(), IMAGES)
    assert np.array_equal(targets.numpy(), LABELS)


def test_idx_is_big_endian(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes.fromhex("00000802 00000002 00000003") + b"abcdef")
    assert read_idx(tmp_path / "file", 2, REMEDY).tolist() == [[97, 98, 99], [100, 101, 102]]


def test_a_gzipped_file_is_read_as_the_plain_one(tmp_path: Path) -> None:
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx(IMAGES)))
    assert np.array_equal(read_idx(tmp_path / "images.gz", 3, REMEDY).numpy(), IMAGES)


def test_cifar_batch(tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(cifar_batch(COLOURS, LABELS[:4]))
    inputs, targets = read_cifar(tmp_path / "batch", 10, REMEDY)
    assert np.array_equal(inputs.numpy(), COLOURS)
    assert np.array_equal(targets.numpy(), LABELS[:4])


def test_a_plain_file_is_mapped_and_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx(IMAGES))
    inputs = read_idx(path, 3, REMEDY)
    assert str(path) in Path(f"/proc/{os.getpid()}/maps").read_text()
    inputs.zero_()
    assert path.read_bytes() == idx(IMAGES)


# --- what is wrong ----------------------------------------------------------------------------------------------------

LONG = len(idx(IMAGES))


@pytest.mark.parametrize(
    ("images", "labels", "blamed", "found"),
    [
        (b"", idx(LABELS), "images", "has 0 bytes, fewer than the 16 of an idx header"),
        (idx(IMAGES)[:9], idx(LABELS), "images", "has 9 bytes, fewer than the 16 of an idx header"),
        (idx(IMAGES)[:-1], idx(LABELS), "images", f"has {LONG - 1} bytes, where 5x28x28 and its header take {LONG}"),
        (idx(IMAGES) + b"!", idx(LABELS), "images", f"has {LONG + 1} bytes, where 5x28x28 and its header take {LONG}"),
        (idx(LABELS), idx(LABELS), "images", "has 13 bytes, fewer than the 16 of an idx header"),
        (idx(IMAGES), idx(IMAGES), "labels", "begins with 00000803 and not with 00000801, an idx file's mark"),
        (b"<html> what a portal says", idx(LABELS), "images", "begins with 3c68746d and not with 00000803"),
        (idx(IMAGES[:, :27]), idx(LABELS), "images", "holds images of 27x28 instead of 28x28"),
        (idx(IMAGES[:4]), idx(LABELS), "images", "holds 4 images, but labels has 5 labels"),
        (idx(IMAGES), idx(LABELS + 20 - LABELS.max()), "labels", "holds the label 20, where labels go from 0 to 9"),
        (idx(IMAGES[:0]), idx(LABELS[:0]), "labels", "holds no samples"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_idx_file(tmp_path: Path, images: bytes, labels: bytes, blamed: str, found: str) -> None:
    with pytest.raises(UserError) as error:
        labelled(tmp_path, images, labels)
    assert str(error.value).startswith(f"{tmp_path / blamed} {found}")
    assert str(error.value).endswith("; fetch it again with: tutti data get mnist")


def test_sizes_beyond_all_memory_are_only_compared(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(struct.pack(">4I", 0x0803, 2**32 - 1, 2**32 - 1, 2**32 - 1) + b"x")
    with pytest.raises(UserError, match=f"take {16 + (2**32 - 1) ** 3}"):
        read_idx(tmp_path / "file", 3, REMEDY)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (cifar_batch(COLOURS, LABELS[:4])[:-1], "has 12291 bytes, no whole number of 3073-byte records"),
        (cifar_batch(COLOURS, LABELS[:4]) + b"!", "has 12293 bytes, no whole number of 3073-byte records"),
        (cifar_batch(COLOURS, LABELS[:4] + 20), "holds the label"),
        (b"", "holds no samples"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_cifar_batch(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(UserError) as error:
        read_cifar(tmp_path / "batch", 10, REMEDY)
    assert f"{tmp_path / 'batch'} {found}" in str(error.value)
    assert str(error.value).endswith("; fetch it again with: tutti data get mnist")


GZIPPED = gzip.compress(idx(IMAGES))


@pytest.mark.parametrize(
    "content", [b"no gzip", GZIPPED[:-20], GZIPPED[:50] + b"?" * 30], ids=["other", "truncated", "garbled"]
)
def test_a_gzipped_file_that_cannot_be_unpacked(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "images.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"images\.gz cannot be unpacked \(.+\); fetch it again with: tutti"):
        read_idx(tmp_path / "images.gz", 3, REMEDY)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"cannot read {tmp_path}/nothing: No such file or directory"):
        read_idx(tmp_path / "nothing", 3, REMEDY)


# --- files that unpack to more than they should -----------------------------------------------------------------------


def peak_of(work: Callable[[], object]) -> int:
    """Bytes that Python had at once while it worked."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["idx", "cifar"])
def test_a_small_file_is_not_unpacked_to_what_it_does_not_declare(kind: str, tmp_path: Path) -> None:
    """194 KB that are 200 MB: refused with the memory of what the file should hold."""
    path = tmp_path / "bomb.gz"
    start = sample_idx() if kind == "idx" else b""
    path.write_bytes(gzip.compress(start + bytes(200_000_000), 9))
    assert path.stat().st_size < 200_000

    def read() -> None:
        sentence = "has 29 bytes, where 3x2x2" if kind == "idx" else "more than the 10,000 records"
        with pytest.raises(UserError, match=sentence):
            read_idx(path, 3, "tutti") if kind == "idx" else read_cifar(path, 10, "tutti")

    assert peak_of(read) < 100_000_000


def test_a_header_that_declares_too_much_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(struct.pack(">4I", 0x0803, 2**32 - 1, 2**32 - 1, 2**32 - 1) + b"abc"))
    with pytest.raises(UserError, match=r"has 19 bytes, where 4294967295x4294967295x4294967295 and its header take"):
        read_idx(path, 3, "tutti")


def sample_idx() -> bytes:
    return struct.pack(">4I", 0x0803, 3, 2, 2) + bytes(12)


def test_a_packed_file_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "images.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(UserError, match="has 0 bytes, fewer than the 16 of an idx header"):
        read_idx(tmp_path / "images.gz", 3, "tutti")
