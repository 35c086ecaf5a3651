"""What one process shows and another sees: where it lies, whose it is, and that it is given back."""

from __future__ import annotations

import gc
import mmap
import os

import pytest
import torch

from tutti.comm import window
from tutti.comm.window import Outlook, Windows, windows


@pytest.fixture
def mine() -> Windows:
    return Windows()


def look_at(shown: Windows) -> Outlook:
    return Outlook(os.getpid(), shown.fd, shown.number)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize("count", [0, 1, 5000])
def test_it_is_zero_and_of_its_size(mine: Windows, count: int, dtype: torch.dtype) -> None:
    tensor = mine.zeros(count, dtype)
    assert (tensor.shape, tensor.dtype) == ((count,), dtype)
    assert not tensor.any()


def test_what_is_written_here_is_seen_there(mine: Windows) -> None:
    first, second = mine.zeros(5000, torch.float32), mine.zeros(3000, torch.int64)
    outlook = look_at(mine)
    first.copy_(torch.arange(5000))
    second.fill_(7)
    for tensor in (first[100:200], second, first[4999:]):
        place = mine.find(tensor.data_ptr(), tensor.nbytes)
        assert place is not None
        assert outlook.see(place, tensor.nbytes).view(tensor.dtype).equal(tensor)
    outlook.close()


def test_what_lies_elsewhere_is_not_found(mine: Windows) -> None:
    tensor, plain = mine.zeros(mmap.PAGESIZE, torch.uint8), torch.zeros(10)
    assert mine.find(plain.data_ptr(), plain.nbytes) is None
    assert mine.find(tensor.data_ptr() + 1, mmap.PAGESIZE) is None
    assert Windows().find(0, 1) is None


def test_what_nobody_uses_is_given_back(mine: Windows) -> None:
    """The memory also while another has it mapped; its place in the file is never used again."""
    outlook, before = look_at(mine), os.fstat(mine.fd).st_blocks
    tensor = mine.zeros(10**6, torch.float32)
    address, place = tensor.data_ptr(), mine.find(tensor.data_ptr(), 4)
    assert place is not None
    seen = outlook.see(place, 4)
    view = tensor[5:10]
    del tensor
    gc.collect()
    assert mine.find(address, 4) is not None  # a part of it is still in use
    del view
    gc.collect()
    assert mine.find(address, 4) is None
    assert os.fstat(mine.fd).st_blocks == before
    assert not seen.any()
    again = mine.zeros(10**6, torch.float32)
    found = mine.find(again.data_ptr(), 4)
    assert found is not None
    assert found.begin > place.begin
    outlook.close()


def test_another_file_is_not_taken_for_it(mine: Windows) -> None:
    with pytest.raises(OSError, match="another process"):
        Outlook(os.getpid(), Windows().fd, mine.number)
    with pytest.raises(FileNotFoundError):
        Outlook(os.getpid(), -1, 0)


def test_a_forked_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = windows()
    assert windows() is before
    monkeypatch.setattr(window.os, "getpid", lambda: -1)
    assert windows() is not before


def test_a_system_without_them_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(window.os, "memfd_create")
    with pytest.raises(OSError, match="no memory without a name"):
        windows()
