"""A study whose every setting is run at the learning rate that is best for it.

First a learning rate is chosen from `--lrs`: on so many samples as `--samples` says, with one seed (lab/search.py: the
grid grows where the best is at its edge). Then the settings run with it, on all of the data and with every seed. With
`--tuned` the values come from earlier sweeps; one learning rate alone is taken as it is. What was chosen is kept for
`--tuned` elsewhere.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from tutti.algorithms.base import Algorithm
from tutti.lab.experiment import Job, Results
from tutti.lab.search import LOST, Axis, Progress, Score, Search, Trial
from tutti.lab.studies.base import Outcome, Study
from tutti.lab.tuned import Tuned, find_file, find_tuned, make_key, store_tuned
from tutti.lab.variation import read_algorithm
from tutti.partitions.base import Partition
from tutti.spec import Count, Range, parse

RATES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
NEAR = 0.01  # of accuracy: what "within 1 point" means
LearningRate = Annotated[float, Range(least=1e-9)]
Momentum = Annotated[float, Range(least=0, most=0.9999)]


@dataclass(frozen=True)
class TunedStudy(Study):
    task: Annotated[str, "what is learnt: see tutti catalogue tasks"] = "fashion-mnist"
    epochs: Annotated[Count, "of every run"] = 10
    batch: Annotated[Count, "samples per worker and step"] = 32
    momentum: Annotated[Momentum, "of SGD, on every worker"] = 0.9
    lrs: Annotated[tuple[LearningRate, ...], "learning rates to choose from; one alone is taken as it is"] = RATES
    samples: Annotated[Count | None, "of the training set for choosing (none: all)"] = 10_000
    tuned: Annotated[bool, "take the learning rates of earlier sweeps instead"] = False

    @abstractmethod
    def settings(self) -> list[Job]:
        """What to run; the learning rate and the seed are not its affair."""

    def tuned_for(self, job: Job) -> Job:
        """What a setting's learning rate is chosen on; settings may share one."""
        return job

    # --- what to run -------------------------------------------------------------------------------------------------

    def make_job(self, name: str, algorithm: str, workers: int, partition: str, **changes: Any) -> Job:
        """With the middle one of the learning rates."""
        plan = self.plan(
            lr=sorted(self.lrs)[(len(self.lrs) - 1) // 2],
            momentum=self.momentum,
            epochs=self.epochs,
            global_batch=self.batch * workers,
            partition=str(parse(partition, Partition)),
            **changes,
        )
        return Job(name, read_algorithm(algorithm), plan, workers, engine="threads")

    def jobs(self) -> list[Job]:
        return self.more(Results({}))

    def more(self, results: Results) -> list[Job]:
        searches = self._searches(results)
        wanted = [trial.job for each in searches.values() for trial in each.wanted]
        if wanted:
            return wanted
        score = score_in(results)
        rates = {name: float(each.best(score)["lr"]) for name, each in searches.items()}
        settings = [job for job in self.settings() if not self.is_done(job.name, results)]
        return self.with_seeds([self._with_rate(job, rates) for job in settings])

    def ahead(self, results: Results, jobs: list[Job]) -> list[Job]:
        """The settings themselves, while their learning rates are being chosen."""
        finals = self.with_seeds(self.settings())
        names = {job.name for job in jobs}
        return [] if any(job.name in names for job in finals) else finals

    @property
    def searches(self) -> bool:
        """Whether there is something to choose from."""
        return not self.tuned and len(set(self.lrs)) > 1

    def _with_rate(self, job: Job, rates: dict[str, float]) -> Job:
        base = self.tuned_for(job)
        lr = rates.get(base.name, job.plan.lr)
        if self.tuned:
            lr = find_tuned(base.spec, base.spec, base.plan, base.workers).plan["lr"]
        return dataclasses.replace(job, plan=dataclasses.replace(job.plan, lr=float(lr)))

    def _searches(self, results: Results) -> dict[str, Progress]:
        """How far each of them is, by the name of what is tuned; none where there is nothing to choose."""
        search, score = Search((Axis.rates(self.lrs),)), score_in(results)
        return {name: search.follow(job, score) for name, job in self._bases().items()} if self.searches else {}

    def _bases(self) -> dict[str, Job]:
        found = {}
        for job in map(self.tuned_for, self.settings()):
            plan = dataclasses.replace(job.plan, samples=self.samples)
            found[job.name] = dataclasses.replace(job, name=f"tune-{job.name}", plan=plan)
        return found

    # --- what is told of it ------------------------------------------------------------------------------------------

    def settle(self, results: Results) -> list[str]:
        """Learning rates for a wire that loses nothing."""
        score = score_in(results)
        bests = [each.best(score) for each in self._searches(results).values()]
        bests = [trial for trial in bests if not trial.base.plan.loss]
        return keep_best([make_entry(trial, outcome_of(trial, results), ["lr"]) for trial in bests])

    def explain_rates(self) -> str:
        if self.tuned:
            return f"Learning rates are those of earlier sweeps, from {find_file()}."
        if not self.searches:
            return f"The learning rate is {self.lrs[0]:g} for all; it was not tuned."
        samples = "all training samples" if self.samples is None else f"the first {self.samples:,} training samples"
        length = f"{self.epochs} epoch{'s' * (self.epochs != 1)}"
        return (
            f"Learning rates were chosen from {', '.join(f'{lr:g}' for lr in sorted(self.lrs))} by the test accuracy "
            f"after {length} on {samples}, with one seed; where the best was at an edge, its neighbour "
            "beyond was tried too. Momentum is "
            f"{self.momentum:g}, a batch {self.batch} samples per worker."
        )


def find_family(spec: str) -> str:
    """What an algorithm is in a sentence: the exchange of its models, where it does nothing but to average them."""
    algorithm = parse(spec, Algorithm)
    return algorithm.members()["exchange"].name if algorithm.name == "model-average" else algorithm.name


def say_points(change: float) -> str:
    """Of accuracy: +1.2 points; what is next to nothing has no minus."""
    return f"{round(100 * change, 1) + 0.0:+.1f} points".replace("-", "−")


def score_in(results: Results) -> Score:
    """The accuracy of a trial that was run with one seed."""

    def score(trial: Trial) -> float | None:
        return score_of(outcome_of(trial, results)) if trial.name in results else None

    return score


def outcome_of(trial: Trial, results: Results) -> Outcome:
    return Outcome(results[trial.name])


def score_of(outcome: Outcome) -> float:
    return LOST if outcome.diverged else outcome.accuracy.mean


# --- what is kept for others -----------------------------------------------------------------------------------------


def make_entry(trial: Trial, outcome: Outcome, searched: list[str]) -> Tuned:
    """`searched` are the parameters; those of the plan that are no part of the key are kept."""
    job = trial.job
    key = make_key(job.spec, job.plan, job.workers)
    plan = dataclasses.asdict(job.plan)
    values = {name: plan[name] for name in (each.replace("-", "_") for each in searched) if name in plan}
    kept = {name: value for name, value in values.items() if name not in key}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return Tuned(key, kept, score_of(outcome), when, job.plan.samples, len(outcome.records), outcome.trained)


def keep_best(entries: list[Tuned]) -> list[str]:
    """The best of those with the same key; returns what to say."""
    best: list[Tuned] = []
    for entry in sorted(entries, key=lambda entry: entry.accuracy, reverse=True):
        if entry.accuracy != LOST and entry.key not in [other.key for other in best]:
            best.append(entry)
    if not best:
        return []
    better = store_tuned(best, find_file())
    said = [f"kept for {old.key['spec']}, from a longer or better search: {old.say()}" for old in better]
    return [f"best values for --tuned: {find_file()}", *said]
