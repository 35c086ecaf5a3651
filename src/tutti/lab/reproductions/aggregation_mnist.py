"""Document 000: how gradients are aggregated over two nodes, MNIST, two epochs, batches of 32 per node.

    the primitives        all-reduce, all-gather, reduce + broadcast, gather + scatter: the same mean, tensor by tensor
    what is aggregated    gradients or parameters, by their mean or their sum
    bottleneck nodes      one slow link, one slow processor

The document publishes times and accuracies of the first two primitives and asks for the rest. All-gather and all-reduce
also run on four hosts, where their bytes differ, and as our own routes over links that are slow enough for bytes to
decide.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import ClassVar

from matplotlib.axes import Axes

from tutti.lab.experiment import Job, Results
from tutti.lab.inquiry import Story, largest
from tutti.lab.picture import colour, tint
from tutti.lab.record import Record
from tutti.lab.report.chart import Chart, Key, is_narrow, patch_key
from tutti.lab.report.parts import Paragraph, Section, Table
from tutti.lab.reproductions.base import Claim, Reproduction
from tutti.lab.units import format_bytes, format_percent, format_seconds
from tutti.train import Plan

NETWORK = "hosts(1Gbit, cpu=0.45)"
SLOW_NETWORK = "hosts(50Mbit, cpu=0.45)"
SLOW_LINK = "hosts(1Gbit, cpu=0.45, slow-rate=50Mbit)"
SLOW_CPU = "hosts(1Gbit, cpu=0.45, slow-cpu=0.15)"
PUBLISHED_SECONDS = {"all-reduce": 44.2, "all-gather": 75.1}
PUBLISHED_ACCURACY = {"all-reduce": 0.9829, "all-gather": 0.9805}


def _by(way: str) -> str:
    return f"gradient-average(all-reduce(native({way})), bucket=0, overlap=false)"


PRIMITIVES = {way: _by(way) for way in ("all-reduce", "all-gather", "reduce-broadcast", "gather-scatter")}
ROUTES = {way: f"gradient-average(all-reduce({way}), overlap=false)" for way in ("ring", "all-gather")}
_SUM = "gradient-average(all-reduce(native, sum), bucket=0, overlap=false)"
_MODEL, _MODEL_SUM = (f"model-average(all-reduce(native, {how}), bucket=0)" for how in ("mean", "sum"))


class AggregationMnist(Reproduction):
    title: ClassVar[str] = "Aggregating gradients over two hosts, MNIST"
    document: ClassVar[str] = "a laboratory report on collective communication with two containers"
    data: ClassVar[tuple[str, ...]] = ("mnist",)

    def jobs(self, quick: bool) -> list[Job]:
        task = "mnist(samples=9600, test=2000)" if quick else "mnist"
        plan = Plan(task=task, model="lenet-5", global_batch=64, epochs=2, lr=0.02, schedule="constant")
        halved = dataclasses.replace(plan, lr=plan.lr / 2)
        adam = dataclasses.replace(plan, optimizer="adam", lr=0.001)
        short = dataclasses.replace(plan, epochs=None, steps=100 if quick else 300)
        four = dataclasses.replace(short, global_batch=128)
        return [
            *(Job(name, spec, plan, 2, NETWORK) for name, spec in PRIMITIVES.items()),
            *(Job(f"{way}-on-4", PRIMITIVES[way], four, 4, NETWORK) for way in ("all-reduce", "all-gather")),
            *(Job(f"slow-{way}", spec, short, 2, SLOW_NETWORK) for way, spec in ROUTES.items()),
            *(Job(f"slow-{way}-on-4", spec, four, 4, SLOW_NETWORK) for way, spec in ROUTES.items()),
            Job("sum", _SUM, plan, 2, NETWORK),
            Job("sum-half-lr", _SUM, halved, 2, NETWORK),
            Job("parameters", _MODEL, plan, 2, NETWORK),
            Job("parameters-sum", _MODEL_SUM, short, 2, NETWORK),
            Job("adam-gradients", PRIMITIVES["all-reduce"], adam, 2, NETWORK),
            Job("adam-parameters", _MODEL, adam, 2, NETWORK),
            *(Job(f"{way}-slow-link", PRIMITIVES[way], short, 2, SLOW_LINK) for way in PRIMITIVES),
            *(Job(f"{way}-slow-cpu", PRIMITIVES[way], short, 2, SLOW_CPU) for way in PRIMITIVES),
        ]

    def tell(self, results: Results) -> Story:
        first = {name: results[name][0] for name in results}
        two, four = (_Ratio.read(first, suffix) for suffix in ("", "-on-4"))
        slow_two, slow_four = (_Ratio.read(first, suffix, ("slow-all-gather", "slow-ring")) for suffix in ("", "-on-4"))
        reached = (format_percent(first[way].accuracy) for way in ("all-gather", "all-reduce"))
        finding = (
            f"All-gather takes {two.time:.2f} times as long as all-reduce on two hosts, where it sends "
            f"{two.sent:.2f} times the bytes, and {four.time:.2f} times as long on four, where it sends "
            f"{four.sent:.2f} times the bytes; on two hosts they reach {' and '.join(reached)}; over links of 50 "
            f"Mbit/s, where bytes decide, an all-gather takes {slow_two.time:.2f} times as long as a ring on two "
            f"hosts and {slow_four.time:.2f} times on four."
        )
        claims = [_slower(first, two), _why_slower(two, four), _same_accuracy(first)]
        sections = [
            _primitives(first),
            _where_bytes_decide(first, slow_two, slow_four),
            _what_is_aggregated(first),
            _bottlenecks(first),
        ]
        return Story(finding, claims, sections)


@dataclasses.dataclass(frozen=True)
class _Ratio:
    """All-gather's step over all-reduce's."""

    time: float
    sent: float  # bytes, the mean over the workers

    @classmethod
    def read(
        cls, first: dict[str, Record], suffix: str, ways: tuple[str, str] = ("all-gather", "all-reduce")
    ) -> _Ratio:
        gather, reduce = (first[f"{way}{suffix}"] for way in ways)
        return cls(gather.step_seconds / reduce.step_seconds, gather.bytes_per_step / reduce.bytes_per_step)


# --- claims ----------------------------------------------------------------------------------------------------------


def _slower(first: dict[str, Record], two: _Ratio) -> Claim:
    published = PUBLISHED_SECONDS["all-gather"] / PUBLISHED_SECONDS["all-reduce"]
    totals = ", ".join(f"{name} {format_seconds(first[name].train_seconds)}" for name in PUBLISHED_SECONDS)
    return Claim(
        "All-reduce works faster than all-gather.",
        f"44.2 s and 75.1 s: {published:.2f} times",
        f"{two.time:.2f} times per step ({totals})",
        "reproduced" if two.time > 1.15 else "not reproduced",
        "Two nodes send the same bytes either way, so which is faster depends on the program around the operation "
        "and on what the backend does with small tensors, not on how much is sent.",
    )


def _why_slower(two: _Ratio, four: _Ratio) -> Claim:
    wrong = two.sent < 1.2 < four.sent
    return Claim(
        "All-reduce is faster because it reduces and broadcasts at the same time.",
        "said, not measured",
        f"bytes all-gather / all-reduce: {two.sent:.2f} on two hosts, {four.sent:.2f} on four "
        f"(time: {two.time:.2f} and {four.time:.2f})",
        "wrong" if wrong else "not reproduced",
        "A worker sends (n-1) models in an all-gather and 2(n-1)/n in an all-reduce: with two nodes that is one model "
        "for both, and from three on all-gather sends n/2 times as much. "
        + ("On two nodes the bytes explain nothing." if wrong else "The bytes counted here are others."),
    )


def _same_accuracy(first: dict[str, Record]) -> Claim:
    reached = {way: first[way].accuracy for way in PUBLISHED_ACCURACY}
    near = abs(reached["all-reduce"] - reached["all-gather"]) < 0.005
    return Claim(
        "Both reach a similar accuracy.",
        ", ".join(format_percent(each, 2) for each in PUBLISHED_ACCURACY.values()),
        ", ".join(format_percent(each, 2) for each in reached.values()),
        "reproduced" if near else "not reproduced",
        "Both compute the mean of the same gradients; with the same seed they "
        + ("differ by rounding alone." if near else "should differ by rounding alone, and here differ by more."),
    )


# --- what is shown ---------------------------------------------------------------------------------------------------


_COLUMNS = ("primitive", "hosts", "step\nms", "of it waiting", "sent per step\nworker 0", "worker 1", "accuracy")


def _primitives(first: dict[str, Record]) -> Section:
    rows = [_row(name, first[name]) for name in (*PRIMITIVES, "all-reduce-on-4", "all-gather-on-4")]
    caption = "The same mean by four primitives of gloo, tensor by tensor; bytes as the hosts' interfaces counted them."
    note = "The runs on four hosts are shorter, with 32 samples per host like the others: compare times and bytes."
    return Section("Primitives", [Table(_COLUMNS, rows, caption), Paragraph(note, "note")])


def _row(name: str, record: Record) -> list[str]:
    sent = record.sent_per_step
    waiting = record.anatomy["exposed"] / record.step_seconds
    times = (f"{1e3 * record.step_seconds:.1f}", format_percent(waiting, 0))
    counts = (format_bytes(sent[0]), format_bytes(sent[1]))
    return [name, str(record.workers), *times, *counts, format_percent(record.accuracy, 2)]


def _where_bytes_decide(first: dict[str, Record], two: _Ratio, four: _Ratio) -> Section:
    rows = [_row(way, first[f"slow-{way}{suffix}"]) for suffix in ("", "-on-4") for way in ROUTES]
    text = (
        "With small tensors over a fast link it is the number of messages that takes the time, and what the backend "
        "does with them. Here the whole gradient is one message over links of 50 Mbit/s, by our own routes. On two "
        f"hosts an all-gather sends {two.sent:.2f} times as much as the ring and takes {two.time:.2f} times as long; "
        f"on four it sends {four.sent:.2f} times as much and takes {four.time:.2f} times as long."
    )
    caption = "Ring and all-gather over slow links; bytes as our wire metered them."
    return Section("Where bytes decide", [Table(_COLUMNS, rows, caption), Paragraph(text)])


_ASKED = {
    "all-reduce": ("gradients, mean", "SGD"),
    "sum": ("gradients, sum", "SGD"),
    "sum-half-lr": ("gradients, sum, learning rate divided by 2", "SGD"),
    "parameters": ("parameters, mean", "SGD"),
    "parameters-sum": ("parameters, sum", "SGD"),
    "adam-gradients": ("gradients, mean", "Adam"),
    "adam-parameters": ("parameters, mean", "Adam"),
}
_DIVERGED = 1e6  # losses so far apart


def _what_is_aggregated(first: dict[str, Record]) -> Section:
    rows = []
    for name, (what, optimizer) in _ASKED.items():
        record, reference = first[name], first["adam-gradients" if optimizer == "Adam" else "all-reduce"]
        loss = "diverged" if record.diverged else f"{record.loss:.4f}"
        reached = (loss, format_percent(record.accuracy, 2))
        rows.append([what, optimizer, str(record.steps), *reached, _gap(record, reference)])
    header = ("aggregated", "optimizer", "steps", "test loss", "accuracy", "step losses apart\nfirst 20 steps")
    paragraphs = [
        "The sum is the mean times the number of workers, so with gradients it multiplies the learning rate: divided "
        "by their number again, training is that of the mean, to rounding.",
        "Averaging parameters after every worker's own step gives the same weights as averaging gradients before it, "
        "to rounding, for SGD with or without momentum: the step is linear in the gradient. Adam's is not: it divides "
        "by the root of a running mean of squares, which is another one on every worker.",
        "The sum of parameters multiplies the model by the number of workers at every step: nothing is learnt.",
    ]
    caption = "What is aggregated, and how; the last column is the largest difference to the mean of gradients."
    return Section("Sum or mean, gradients or parameters", [Table(header, rows, caption), *map(Paragraph, paragraphs)])


def _gap(record: Record, reference: Record) -> str:
    pairs = zip(record.measurements[0]["losses"][:20], reference.measurements[0]["losses"][:20], strict=True)
    gap = largest(abs(a - b) for a, b in pairs)
    return f"{gap:.1e}" if gap < _DIVERGED else "diverged"


_CONDITIONS = {
    "": "equal hosts",
    "-slow-link": "one link of 50 Mbit/s",
    "-slow-cpu": "one host with a third of the CPU",
}


def _bottlenecks(first: dict[str, Record]) -> Section:
    rows = []
    for way in PRIMITIVES:
        for suffix, condition in _CONDITIONS.items():
            record = first[way + suffix]
            waits = [f"{1e3 * _waiting(record, rank):.1f}" for rank in (0, 1)]
            times = (f"{1e3 * record.step_seconds:.1f}", f"{record.step_seconds / first[way].step_seconds:.2f}")
            rows.append([way, condition, *times, *waits])
    header = ("primitive", "condition", "step\nms", "× equal hosts", "worker 0 waits\nms", "the slow one waits\nms")
    paragraphs = [
        "Every collective here ends for all workers when the slowest has taken part, so one slow host sets the pace "
        "of both. Where its processor is slow, the other waits for its gradients; it waits as well, since sending, "
        "receiving and adding up take its processor too. Where its link is slow, both wait for the link.",
    ]
    caption = "The last host is the bottleneck; medians, waiting for communication per step."
    return Section("A bottleneck node", [Table(header, rows, caption), _chart(first), *map(Paragraph, paragraphs)])


def _waiting(record: Record, rank: int) -> float:
    return float(statistics.median(record.counted(record.measurements[rank]["exposed"])))


def _computing(record: Record, rank: int) -> float:
    return float(statistics.median(record.counted(record.measurements[rank]["seconds"]))) - _waiting(record, rank)


def _chart(first: dict[str, Record]) -> Chart:
    """Stacked bars: computing and waiting of both workers, for all-reduce under every condition."""

    def draw(axes: Axes) -> None:
        labels = []
        for row, (suffix, condition) in enumerate(_CONDITIONS.items()):
            for rank in (0, 1):
                record, place = first[f"all-reduce{suffix}"], 3 * row + rank
                computing, waiting = 1e3 * _computing(record, rank), 1e3 * _waiting(record, rank)
                axes.barh(place, computing, 0.8, color=tint(rank), edgecolor=colour(rank))
                axes.barh(place, waiting, 0.8, left=computing, color=colour(rank), edgecolor=colour(rank))
            labels.append(
                condition.replace(" of ", "\nof ").replace(" with ", "\nwith ") if is_narrow(axes) else condition
            )
        axes.set_yticks([3 * row + 0.5 for row in range(len(labels))], labels)
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds per step (median)")
        axes.grid(axis="x")

    keys: list[Key] = [
        patch_key("worker 0 computes", tint(0)),
        patch_key("waits", colour(0)),
        patch_key("worker 1, the slow one, computes", tint(1)),
        patch_key("waits", colour(1)),
    ]
    return Chart("Who waits for whom", [draw], "All-reduce on two hosts; one step of either worker.", keys=keys)
