"""`run.save(folder)` and `run.load(folder)`: collective, with one folder for all workers.

A save has three parts, and behind each all workers hear of everybody's errors, so that one worker's full disk is an
error on all of them and no worker waits for one that has given up:

    1  worker 0 makes a draft with a token in it; everybody looks for the token
    2  every worker writes its own file
    3  worker 0 sees that all files are there, writes the manifest, renames the draft, and removes what is too old

Whatever happens before the rename, the checkpoints that were there before are untouched. The files are those of
checkpoint_folder.py; what is in them beside the run's own state is in checkpoint_state.py.

A load reads and checks everything on all workers before it changes anything on any. With the workers and the algorithm
that the checkpoint was made with, the run goes on bit by bit (if the algorithm is deterministic). With others, every
worker gets the same weights and optimizer state, the algorithm begins anew, and a warning says what was lost.
"""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tutti.algorithms.base import Algorithm
from tutti.checkpoint_folder import (
    MANIFEST,
    Draft,
    File,
    Manifest,
    choose,
    name_file,
    read_file,
    remove_older,
    write_file,
)
from tutti.checkpoint_state import (
    check_model,
    check_optimizers,
    check_trained,
    make_plain,
    merge,
    set_random_states,
    take_random_states,
)
from tutti.comm.base import Comm, Lane, PeerLost
from tutti.errors import NotWritten, RunFailed, UserError
from tutti.replica import Replica

_TAG = "control/checkpoint"


class Resumable(Protocol):
    """What is needed of a `Run`."""

    algorithm: Algorithm
    replica: Replica
    lane: Lane
    identity: str  # of this run in its checkpoints; empty until it has one

    @property
    def comm(self) -> Comm: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


# --- saving ----------------------------------------------------------------------------------------------------------


def save_run(run: Resumable, folder: str | Path, keep: int | None, extras: dict[str, Any]) -> Path:
    """Where the checkpoint is."""
    folder, comm, drafts = Path(folder), run.comm, list[Draft]()

    def begin() -> dict[str, Any]:
        _check_keep(keep)
        if comm.rank > 0:
            return {}
        drafts.append(Draft.make(folder, run.replica.steps, secrets.token_hex(8)))
        return {**vars(drafts[0]), "run": run.identity or secrets.token_hex(8)}

    def write() -> dict[str, Any]:
        if not draft.is_visible(folder, comm.clock):
            raise UserError(
                f"worker {comm.rank} does not see in {folder.resolve()} what worker 0 has written there; checkpoints "
                "need one folder that all workers share"
            )
        return vars(write_file(folder / draft.folder / name_file(comm.rank), _take_content(run, identity, extras)))

    def publish() -> str:
        if comm.rank == 0:
            draft.publish(folder, _describe(run, identity, draft, files, extras), comm.clock)
            if keep is not None:
                remove_older(folder, identity, keep)
        return ""

    try:
        what = f"the checkpoint in {folder}"
        made = _together(comm, f"write {what}", begin)[0]
        identity = made.pop("run")
        draft = Draft(**made)
        files = [File(**each) for each in _together(comm, f"write {what}", write)]
        _together(comm, f"write {what}", publish)
    except BaseException:
        for each in drafts:
            each.discard(folder)
        raise
    run.identity = identity
    return folder / draft.name


def _check_keep(keep: int | None) -> None:
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise UserError(f"keep must be a whole number from 1, or None for all checkpoints, not {keep!r}")


def _take_content(run: Resumable, identity: str, extras: dict[str, Any]) -> dict[str, Any]:
    """What one worker's file holds."""
    state = run.state_dict()  # first: what is under way changes the objects, such as those that count it
    objects = {name: each.state_dict() for name, each in extras.items() if _is_object(each)}
    values = {name: each for name, each in extras.items() if not _is_object(each)}
    return {
        "run": identity,
        "rank": run.comm.rank,
        "steps": run.replica.steps,
        "state": make_plain(state, "the run's state"),
        "others": [p.detach() for p in _others(run.replica)],
        "random": take_random_states(_device(run)),
        "objects": {name: make_plain(each, f"the state of {name}") for name, each in objects.items()},
        "values": {name: make_plain(each, name) for name, each in values.items()},
    }


def _describe(run: Resumable, identity: str, draft: Draft, files: list[File], extras: dict[str, Any]) -> Manifest:
    from tutti import __version__

    return Manifest(
        run=identity,
        number=draft.number,
        spec=str(run.algorithm),
        workers=run.comm.size,
        steps=run.replica.steps,
        files=files,
        tutti=__version__,
        torch=torch.__version__,
        extras={name: "object" if _is_object(each) else "value" for name, each in extras.items()},
    )


# --- loading ---------------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """What a worker has read, before anything is changed."""

    content: dict[str, Any]  # of this worker, or of worker 0 with the merged states of all
    manifest: Manifest
    same: bool  # workers and algorithm, so that the run goes on bit by bit
    differed: bool = False  # whether the workers did, whose states were merged


def load_run(run: Resumable, folder: str | Path, extras: dict[str, Any]) -> dict[str, Any]:
    """The plain values that were saved; objects are restored in place."""
    folder, comm = Path(folder), run.comm

    def find() -> list[str]:
        if comm.rank > 0:
            return []
        path = choose(folder)
        Manifest.read(path)
        return ["." if path == folder else path.name, _digest_manifest(path)]

    what = f"load a checkpoint from {folder}"
    name, digest = _together(comm, what, find)[0]
    path = folder if name == "." else folder / name
    found: list[_Found] = []
    _together(comm, what, lambda: found.append(_read(run, path, digest, extras)))
    _together(comm, what, lambda: _apply(run, found[0], extras))
    if not found[0].same and not _wraps(run):
        run.algorithm.setup(run.replica, run.lane)
    _together(comm, what, lambda: _restore_random_states(run, found[0]))
    _say_what_was_lost(run, path, found[0], extras)
    run.identity = found[0].manifest.run if found[0].same else ""
    return dict(found[0].content["values"])


def _read(run: Resumable, path: Path, digest: str, extras: dict[str, Any]) -> _Found:
    """Read this worker's state or those of all, and refuse what does not fit."""
    if not (path / MANIFEST).exists() or _digest_manifest(path) != digest:
        raise UserError(
            f"worker {run.comm.rank} finds another checkpoint in {path.resolve()} than worker 0 (or none); checkpoints "
            "need one folder that all workers share"
        )
    manifest, current = Manifest.read(path), run.state_dict()
    same = (manifest.spec, manifest.workers) == (str(run.algorithm), run.comm.size)
    found = _read_own(run, path, manifest) if same else _read_all(run, path, manifest)
    saved = found.content["state"]
    check_model(path, saved["model"], current["model"])
    check_optimizers(path, _each(saved["optimizer"]), _each(current["optimizer"]))
    if same:
        check_trained(saved, current["trained"])
    _check_extras(path, found.content, extras)
    return found


def _read_own(run: Resumable, path: Path, manifest: Manifest) -> _Found:
    return _Found(read_file(path, manifest, run.comm.rank), manifest, same=True)


def _read_all(run: Resumable, path: Path, manifest: Manifest) -> _Found:
    """The states of all workers in one. Every worker computes it by itself, in the same order, so with the same bits.
    Random states and objects are the worker's own where there are as many workers, and worker 0's elsewhere."""
    kept = run.comm.rank if manifest.workers == run.comm.size else 0
    contents: list[dict[str, Any]] = []

    def states() -> Any:
        for rank in range(manifest.workers):
            content = read_file(path, manifest, rank)
            if rank in (0, kept):
                contents.append(content)
            yield {key: content["state"][key] for key in ("model", "optimizer")} | {"others": content["others"]}

    merged, differed = merge(states())
    state = {**contents[0]["state"], "model": merged["model"], "optimizer": merged["optimizer"]}
    return _Found({**contents[-1], "state": state, "others": merged["others"]}, manifest, False, differed)


def _apply(run: Resumable, found: _Found, extras: dict[str, Any]) -> None:
    content = found.content
    with torch.no_grad():
        if found.same:
            run.load_state_dict(content["state"])
            _load_others(run.replica, content["others"])
        else:
            _load_weights(run, content)
    for name, each in extras.items():
        each.load_state_dict(content["objects"][name])


def _load_weights(run: Resumable, content: dict[str, Any]) -> None:
    """Weights, optimizer state and steps; the algorithm is taken off, to be set up again as at the start of a run."""
    state, replica = content["state"], run.replica
    run.algorithm.drain()
    if not _wraps(run):
        run.algorithm.close()
        replica.release()
    replica.model.load_state_dict(state["model"])
    replica.optimizers.load_state_dict(state["optimizer"])
    _load_others(replica, content["others"])
    replica.load_steps(state["steps"], [])


def _restore_random_states(run: Resumable, found: _Found) -> None:
    if found.manifest.workers == run.comm.size:
        set_random_states(found.content["random"], _device(run))


def _load_others(replica: Replica, saved: list[Tensor]) -> None:
    for parameter, tensor in zip(_others(replica), saved, strict=True):
        parameter.copy_(tensor)


def _say_what_was_lost(run: Resumable, path: Path, found: _Found, extras: dict[str, Any]) -> None:
    manifest = found.manifest
    said = []
    if not found.same:
        taken = "the mean of the workers' weights and optimizer states" if found.differed else "weights and optimizer"
        lost = "the state of the algorithm, which begins anew"
        if manifest.workers != run.comm.size:
            lost += ", and the random states of the workers"
        said.append(
            f"{path} is of {manifest.workers} worker(s) with '{manifest.spec}', and this run has {run.comm.size} with "
            f"'{run.algorithm}': taken over: {taken}; lost: {lost}"
        )
    left = sorted(found.content["objects"].keys() - extras.keys())
    if left:
        names = ", ".join(left)
        said.append(f"{path} also holds the state of {names}, which was not restored: hand it to run.load")
    if run.comm.rank == 0:
        for sentence in said:
            warnings.warn(sentence, stacklevel=4)


# --- refusals --------------------------------------------------------------------------------------------------------


def _check_extras(path: Path, content: dict[str, Any], extras: dict[str, Any]) -> None:
    for name, each in extras.items():
        if not _is_object(each):
            raise UserError(
                f"run.load(..., {name}=...) takes objects with state_dict and load_state_dict; plain values are in "
                f"what it returns: run.load(folder)['{name}']"
            )
        if name not in content["objects"]:
            there = ", ".join(sorted(content["objects"])) or "none"
            raise UserError(f"{path} holds no state of '{name}'; objects that were saved: {there}")


# --- parts of a run --------------------------------------------------------------------------------------------------


def _is_object(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _wraps(run: Resumable) -> bool:
    """Whether the algorithm trains a wrapper (torch-ddp), which stays; it keeps nothing from step to step."""
    return run.algorithm.model(run.replica) is not run.replica.model


def _each(states: Any) -> list[dict[str, Any]]:
    """The state of one optimizer, or of several."""
    return list(states) if isinstance(states, list | tuple) else [states]


def _others(replica: Replica) -> list[Tensor]:
    """Parameters that only an optimizer knows: they are in no state_dict."""
    known = {id(p) for p in replica.model.parameters()}
    return [p for p in dict.fromkeys(replica.optimizers.parameters) if id(p) not in known]


def _device(run: Resumable) -> torch.device:
    return next(run.replica.model.parameters()).device


def _digest_manifest(path: Path) -> str:
    return sha256((path / MANIFEST).read_bytes()).hexdigest()


# --- together --------------------------------------------------------------------------------------------------------


def _together(comm: Comm, what: str, work: Callable[[], Any]) -> list[Any]:
    """What `work` returned on every worker; an error on one of them is raised on all."""
    value, own = None, None
    try:
        value = work()
    except PeerLost:
        raise
    except Exception as error:
        own = error
    rows = comm.gather_bytes(json.dumps([_say(own, what), _find_kind(own), value]).encode(), _TAG)
    answers = [json.loads(row) for row in rows]
    for rank, (sentence, kind, _) in enumerate(answers):
        if sentence:
            if own is not None and not isinstance(own, _MISTAKES):
                raise own
            known = rank == 0 or f"worker {rank} " in sentence or all(each[0] == sentence for each in answers)
            said = sentence if known else f"worker {rank}: {sentence}"
            raise _KINDS[kind](said) from None
    return [value for _, _, value in answers]


_MISTAKES = (UserError, OSError)
_KINDS: dict[str, type[Exception]] = {"user": UserError, "disk": NotWritten, "program": RunFailed}


def _find_kind(error: Exception | None) -> str:
    return "disk" if isinstance(error, OSError) else "user" if isinstance(error, UserError) else "program"


def _say(error: Exception | None, what: str) -> str:
    if error is None:
        return ""
    if isinstance(error, OSError):
        return f"cannot {what}: {error.strerror or error}"
    return str(error) if isinstance(error, UserError) else f"cannot {what}: {type(error).__name__}: {error}"
