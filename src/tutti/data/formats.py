"""The official formats of small image data sets, read as bytes: idx (MNIST and its kin) and CIFAR-10's binary batches.

Plain files are mapped into memory and not read: loading takes no time, and the workers of one machine share the pages.
The mapping is copy-on-write, so a tensor may be written to while the file stays as it is. A file that ends in .gz is
unpacked into memory. Whatever is wrong with a file is one sentence that ends with the command that fetches it again.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tutti.errors import UserError
from tutti.files import name_problem

GZIP_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)
_MAGIC_OF_BYTES = 0x0800  # an idx file of unsigned bytes; the number of dimensions is added to it
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_BATCH = 10_000  # records of a file
_CHUNK = 1 << 20
_CIFAR_RECORD = 1 + 3 * 32 * 32  # the label, then red, green and blue, each row by row


def read_idx(path: Path, dimensions: int, remedy: str) -> Tensor:
    """The contents of an idx file of bytes that has so many dimensions."""
    header = 4 * (1 + dimensions)
    contents = _contents(path, remedy, lambda start: header + _count_bytes(start, dimensions))
    if len(contents) < header:
        raise _damaged(path, f"has {len(contents)} bytes, fewer than the {header} of an idx header", remedy)
    magic, *shape = np.frombuffer(contents[:header].numpy().tobytes(), dtype=">u4").tolist()
    wanted = _MAGIC_OF_BYTES + dimensions
    if magic != wanted:
        raise _damaged(path, f"begins with {magic:08x} and not with {wanted:08x}, an idx file's mark", remedy)
    expected = header + int(np.prod(shape, dtype=object))
    if len(contents) != expected:
        sizes = "x".join(map(str, shape))
        raise _damaged(path, f"has {len(contents)} bytes, where {sizes} and its header take {expected}", remedy)
    return contents[header:].view(shape)


def read_labelled_idx(
    images: Path, labels: Path, shape: tuple[int, ...], classes: int, remedy: str
) -> tuple[Tensor, Tensor]:
    """The images of one file with the labels of another."""
    inputs = read_idx(images, 1 + len(shape), remedy)
    targets = read_idx(labels, 1, remedy)
    if inputs.shape[1:] != shape:
        found, wanted = ("x".join(map(str, sizes)) for sizes in (inputs.shape[1:], shape))
        raise _damaged(images, f"holds images of {found} instead of {wanted}", remedy)
    if len(inputs) != len(targets):
        raise _damaged(images, f"holds {len(inputs)} images, but {labels.name} has {len(targets)} labels", remedy)
    _check_labels(targets, classes, labels, remedy)
    return inputs, targets


def read_cifar(path: Path, classes: int, remedy: str) -> tuple[Tensor, Tensor]:
    """The images and labels of one binary batch of CIFAR-10."""
    contents = _contents(path, remedy, lambda _: _CIFAR_BATCH * _CIFAR_RECORD)
    if len(contents) > _CIFAR_BATCH * _CIFAR_RECORD and path.suffix == ".gz":
        raise _damaged(path, f"unpacks to more than the {_CIFAR_BATCH:,} records of a batch", remedy)
    if len(contents) % _CIFAR_RECORD:
        found = f"has {len(contents)} bytes, no whole number of {_CIFAR_RECORD}-byte records"
        raise _damaged(path, found, remedy)
    records = contents.view(-1, _CIFAR_RECORD)
    inputs, targets = records[:, 1:].unflatten(1, _CIFAR_SHAPE), records[:, 0]
    _check_labels(targets, classes, path, remedy)
    return inputs, targets


def _check_labels(labels: Tensor, classes: int, path: Path, remedy: str) -> None:
    if not len(labels):
        raise _damaged(path, "holds no samples", remedy)
    largest = int(labels.max())
    if largest >= classes:
        raise _damaged(path, f"holds the label {largest}, where labels go from 0 to {classes - 1}", remedy)


def _count_bytes(start: bytes, dimensions: int) -> int:
    """That an idx file says it has behind its header; none where this is no such header."""
    magic, *shape = struct.unpack(f">{1 + dimensions}I", start[: 4 * (1 + dimensions)].ljust(4 * (1 + dimensions)))
    return math.prod(shape) if magic == _MAGIC_OF_BYTES + dimensions else 0


def _contents(path: Path, remedy: str, find_size: Callable[[bytes], int]) -> Tensor:
    """All bytes of a file. One that is packed is unpacked up to the size that `find_size` reads off its first bytes,
    and one byte further where there is more: a small file may unpack to more than there is memory."""
    try:
        if path.suffix == ".gz":
            return torch.from_numpy(np.frombuffer(_unpack(path, find_size), np.uint8))  # which may be empty
        if path.stat().st_size == 0:
            return torch.empty(0, dtype=torch.uint8)
        return torch.from_numpy(np.memmap(path, np.uint8, mode="c"))
    except GZIP_ERRORS as error:
        raise _damaged(path, f"cannot be unpacked ({error})", remedy) from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {name_problem(error)}") from None


def _unpack(path: Path, find_size: Callable[[bytes], int]) -> bytearray:
    contents = bytearray()
    with gzip.open(path) as stream:
        contents += stream.read(_CHUNK)
        size = find_size(bytes(contents)) + 1
        while len(contents) < size and (chunk := stream.read(min(_CHUNK, size - len(contents)))):
            contents += chunk
    del contents[size:]
    return contents


def _damaged(path: Path, found: str, remedy: str) -> UserError:
    return UserError(f"{path} {found}; fetch it again with: {remedy}")
