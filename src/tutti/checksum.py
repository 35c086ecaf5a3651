"""A checksum of tensors that costs about as much as reading them once, on the device where they are.

    c = sum_j m_j * sum_i w[i, j]    modulo 2^64, over 8-byte words w in rows of 1024; the m_j are odd and all different

Any change of one word changes it, and so does a swap of words in different columns. It is no protection against
somebody who means to deceive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

_COLUMNS = 1024
_FACTOR = -7046029254386353131  # 2^64 over the golden ratio, odd


@torch.no_grad()
def checksum(tensor: Tensor) -> Tensor:
    """One number of type int64, on the tensor's device; equal bits give equal numbers, NaN or not."""
    octets = _octets(tensor)
    whole = octets.numel() // (8 * _COLUMNS) * (8 * _COLUMNS)
    factors = _factors(tensor.device)
    total = octets.new_zeros((), dtype=torch.int64)
    if whole:
        total = total + (octets[:whole].view(torch.int64).view(-1, _COLUMNS).sum(0) * factors).sum()
    rest = octets[whole:].to(torch.int64)
    if rest.numel():
        places = torch.arange(1, rest.numel() + 1, device=rest.device)
        total = total + (rest * places).sum() * _FACTOR
    return total


def combine(checks: Sequence[Tensor]) -> int:
    """One number for all of them, in this order; it waits for the device."""
    numbers = [number for check in _stacks(checks) for number in check.tolist()]
    total = 0
    for number in numbers:
        total = (total * 31 + number) * _FACTOR % 2**64
    return total - 2**63


def _stacks(checks: Sequence[Tensor]) -> list[Tensor]:
    """In order, those of one device together: each waits for its device once."""
    return [torch.stack(list(checks)).cpu()] if len({c.device for c in checks}) == 1 else [c.view(1) for c in checks]


def _octets(tensor: Tensor) -> Tensor:
    """The bytes, without a copy where they lie in order."""
    plain = tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    octets = plain.contiguous().reshape(-1).view(torch.uint8)
    return octets if octets.data_ptr() % 8 == 0 and octets.storage_offset() % 8 == 0 else octets.clone()


@cache
def _factors(device: torch.device) -> Tensor:
    return torch.arange(1, 2 * _COLUMNS, 2, device=device) * _FACTOR
