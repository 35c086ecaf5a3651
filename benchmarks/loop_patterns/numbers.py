"""Patterns around number types: autocast, scaling, half precision, complex numbers."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from loop_patterns.registry import pattern
from loop_patterns.session import Result, Session, learn, net, sgd, weights


@pattern("single precision", tolerance=1e-5)
def single_precision(s: Session) -> Result:
    model = net(dtype=torch.float32)
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step, dtype=torch.float32))
        t.step()
    return weights(model)


@pattern("autocast to bfloat16", tolerance=2e-3)
def autocast_bf16(s: Session) -> Result:
    model = net(dtype=torch.float32)
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = s.loss(t.model, step, dtype=torch.float32)
        t.backward(loss)
        t.step()
    return weights(model)


def _scaled(s: Session, clip: bool = False, overflow: bool = False) -> Result:
    model = net(dtype=torch.float32)
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    scales = []
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = s.loss(t.model, step, dtype=torch.float32)
        if overflow and step == 2 and s.rank == 1:
            loss = loss * math.inf
        t.backward(scaler.scale(loss))
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        t.step(scaler=scaler)
        scaler.update()
        scales.append(scaler.get_scale())
    return weights(model, scales=scales)


@pattern("float16 autocast with a GradScaler", tolerance=1e-3)
def grad_scaler(s: Session) -> Result:
    return _scaled(s)


@pattern("the same with `unscale_` and clipping", tolerance=1e-3)
def grad_scaler_clip(s: Session) -> Result:
    return _scaled(s, clip=True)


@pattern("a GradScaler, and one worker's gradient overflows", tolerance=1e-3)
def grad_scaler_overflow(s: Session) -> Result:
    return _scaled(s, overflow=True)


def _in_type(s: Session, dtype: torch.dtype) -> Result:
    model = net(dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        inputs, targets = s.batch(step, dtype=dtype)
        t.backward(functional.mse_loss(t.model(inputs), targets + 4 * s.rank))
        t.step()
    return weights(model)


@pattern("bfloat16 parameters", tolerance=3e-2)
def bfloat16_parameters(s: Session) -> Result:
    return _in_type(s, torch.bfloat16)


@pattern("float16 parameters", tolerance=4e-3)
def float16_parameters(s: Session) -> Result:
    return _in_type(s, torch.float16)


@pattern("parameters of several types in one model", tolerance=3e-2)
def mixed_types(s: Session) -> Result:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net(dtype=torch.float32)
            self.inner[2].bfloat16()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.inner[2](self.inner[:2](inputs).bfloat16()).float()

    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        inputs, targets = s.batch(step, dtype=torch.float32)
        t.backward(functional.mse_loss(t.model(inputs), targets + 4 * s.rank))
        t.step()
    return weights(model)


@pattern("complex parameters", must="either")
def complex_parameters(s: Session) -> Result:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            drawn = torch.Generator().manual_seed(1)
            self.filter = nn.Parameter(torch.randn(3, 2, generator=drawn, dtype=torch.complex128))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return (inputs.to(torch.complex128) @ self.filter).abs()

    model = Spectral()
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model)


@pattern(
    "master weights by hand: a bfloat16 model beside float32 copies that the optimizer steps on",
    tolerance=3e-2,
    must="either",
    ddp="The gradients are put into p.grad by hand: no hook of DDP sees them.",
)
def master_weights(s: Session) -> Result:
    model = net(dtype=torch.float32)
    low = net(dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    t = s.distribute(model, optimizer)
    for step in range(4):
        low.load_state_dict(model.state_dict())
        low.zero_grad()
        inputs, targets = s.batch(step, dtype=torch.bfloat16)
        functional.mse_loss(low(inputs), targets + 4 * s.rank).backward()
        for p, q in zip(model.parameters(), low.parameters(), strict=True):
            assert q.grad is not None
            p.grad = q.grad.float()
        t.step()
    return weights(model)
