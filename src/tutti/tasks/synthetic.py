"""Random data of any shape for any model: measures speed, and nothing else. The data has no meaning, so accuracy on the
test split stays at chance.

With `compute` above zero the model computes nothing: a forward takes a third of that time and a backward two thirds,
asleep, as a worker waits for its GPU. Eight workers on two cores then measure communication and not contention. In
backward every parameter takes a share of the time in proportion to its size and is given a gradient when its share is
over, the last layer's first, so communication overlaps with it as it would in earnest. The scores are all equal, the
gradients the same at every step and on every worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tutti.clock import Clock
from tutti.spec import Count, Seconds, Sizes
from tutti.tasks.base import Data, Split, Task

_SEED = 0
_TEST_ONE_IN = 8
_FORWARD_SHARE = 1 / 3
_GRADIENT_SCALE = 1e-3


@dataclass
class Synthetic(Task):
    """Noise in, chance out: for timing a model, or communication alone."""

    default_model: ClassVar[str] = "vgg-11"

    shape: Sizes = (3, 32, 32)
    classes: Count = 10
    samples: Count = 4096
    compute: Seconds = 0.0

    def load(self, folder: Path | None = None) -> Data:
        generator = torch.Generator().manual_seed(_SEED)
        train = self._noise(self.samples, generator)
        test = self._noise(max(1, self.samples // _TEST_ONE_IN), generator)
        return Data(train, test, self.shape, self.classes)

    def prepare(self, model: nn.Module, clock: Clock) -> nn.Module:
        return _Paced(model, self.classes, self.compute, clock) if self.compute > 0 else model

    def _noise(self, samples: int, generator: torch.Generator) -> Split:
        """Input i is the window that begins at i of one random vector: no two are equal, and memory is for about one,
        where 4,096 images of 3x224x224 would fill 2.5 GB on every worker."""
        size = torch.Size(self.shape).numel()
        inputs = torch.randn(samples + size - 1, generator=generator).unfold(0, size, 1)
        targets = torch.randint(self.classes, (samples,), generator=generator)
        return Split(inputs.view(samples, *self.shape), targets)


class _Paced(nn.Module):
    """A model with its own parameters, buffers and names, whose forward and backward only take time."""

    def __init__(self, model: nn.Module, classes: int, seconds: float, clock: Clock) -> None:
        super().__init__()
        vars(self).update(vars(model))
        self._classes, self._seconds, self._clock = classes, seconds, clock
        self._gradients: dict[object, _Gradient] = {}

    def forward(self, inputs: Tensor) -> Tensor:
        start = self._clock.now()
        parameters = [p for p in self.parameters() if p.requires_grad]
        total = sum(p.numel() for p in parameters)
        pace = _Pace(self._clock, self._seconds * (1 - _FORWARD_SHARE))
        scores = inputs.new_zeros(len(inputs), self._classes)
        before = 0
        for parameter in parameters:
            scores = _Layer.apply(scores, parameter, self._gradient(parameter), pace, 1 - before / total)
            before += parameter.numel()
        _sleep_until(start + self._seconds * _FORWARD_SHARE, self._clock)
        return scores

    def _gradient(self, parameter: nn.Parameter) -> _Gradient:
        key = (parameter, parameter.device, parameter.dtype, parameter.stride())
        if key not in self._gradients:
            self._gradients[key] = _Gradient(parameter)
        return self._gradients[key]


class _Gradient:
    """The gradient of one parameter: noise, as codecs such as top-k are slow or fast by the values they meet."""

    def __init__(self, parameter: nn.Parameter) -> None:
        generator = torch.Generator(parameter.device).manual_seed(_SEED)
        self._parameter = parameter
        self._noise = torch.empty_like(parameter, requires_grad=False).normal_(std=_GRADIENT_SCALE, generator=generator)
        self._copy = torch.empty_like(self._noise)

    def give(self) -> Tensor:
        """What autograd is to add up. Where there is nothing to add to, autograd keeps the tensor it is given if no
        other names it, and copies it otherwise into new memory, which takes a CPU three times as long as our copy."""
        if self._parameter.grad is not None:
            return self._noise
        return self._copy.copy_(self._noise).detach()


class _Pace:
    """A stretch of time that begins when it is first waited for. Its marks are absolute, so that whatever the worker
    did meanwhile (hooks, copies, a sleep that was too long) does not lengthen it, as it would not on a GPU."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._start: float | None = None

    def wait(self, share: float) -> None:
        """Sleep until this share of the stretch is over."""
        if self._start is None:
            self._start = self._clock.now()
        _sleep_until(self._start + share * self._seconds, self._clock)


def _sleep_until(moment: float, clock: Clock) -> None:
    left = moment - clock.now()
    if left > 0:
        clock.sleep(left)


class _Layer(torch.autograd.Function):
    """Passes scores on unchanged; on the way back waits for its time and gives its parameter a gradient."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, _parameter: Tensor, gradient: _Gradient, pace: _Pace, share: float) -> Tensor:
        ctx.gradient, ctx.pace, ctx.share = gradient, pace, share
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        ctx.pace.wait(ctx.share)
        return above, ctx.gradient.give(), None, None, None
