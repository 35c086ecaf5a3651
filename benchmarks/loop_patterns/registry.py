"""The list of patterns: each is a function that trains on one worker and returns what is to be compared."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from loop_patterns.session import METHODS, TUTTI, Result, Session

SIZES = {"torch-ddp": 2, "ddp": 2, "allreduce-model": 2, "d-psgd": 4, "relay-sgd": 4}
REPARAMETRISED = {"relay-sgd": 2}  # where the parameters change, the halves of relay-sgd's buffers do too


@dataclass(frozen=True)
class Pattern:
    name: str
    title: str
    function: Callable[[Session], Result]
    must: Literal["work", "refuse", "either"]  # what Tutti has to do with it
    refuse: tuple[str, ...]  # methods for which there is no right result: to be refused
    methods: tuple[str, ...]  # that the pattern exists for
    tolerance: float
    sizes: dict[str, int]
    variants: tuple[str, ...]  # of the references: each one's result counts as right
    blind: bool  # the result is the same without any exchange
    ddp: str  # why torch's DDP gets it wrong, in a sentence
    theme: str = field(default="")

    def size(self, method: str) -> int:
        return {**SIZES, **self.sizes}[method]


PATTERNS: dict[str, Pattern] = {}


def pattern(
    title: str,
    must: Literal["work", "refuse", "either"] = "work",
    refuse: tuple[str, ...] | None = None,
    methods: tuple[str, ...] = METHODS,
    tolerance: float = 1e-9,
    sizes: dict[str, int] | None = None,
    variants: tuple[str, ...] = ("",),
    blind: bool = False,
    ddp: str = "",
) -> Callable[[Callable[[Session], Result]], Callable[[Session], Result]]:
    def add(function: Callable[[Session], Result]) -> Callable[[Session], Result]:
        name = function.__name__.replace("_", "-")
        refused = refuse if refuse is not None else (TUTTI if must == "refuse" else ())
        assert name not in PATTERNS, name
        theme = function.__module__.rpartition(".")[2]
        PATTERNS[name] = Pattern(
            name, title, function, must, refused, methods, tolerance, sizes or {}, variants, blind, ddp, theme
        )
        return function

    return add


def load() -> dict[str, Pattern]:
    """All patterns, in the order of the page."""
    for theme in ("steps", "optimizers", "parameters", "models", "numbers", "data", "state", "mistakes"):
        importlib.import_module(f"loop_patterns.{theme}")
    return PATTERNS
