"""What a worker waited for when another was lost, in words: the sentences of `PeerLost` on every wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tutti.comm.base import PeerLost

_WORDS = {
    "weights/start": "weights at the start",
    "weights/switch": "weights at a switch of algorithms",
    "metrics/mean": "numbers for run.mean()",
    "metrics/consensus": "part of the mean model",
    "control/first-batch": "first batch's checksum",
    "control/barrier": "arrival at a barrier",
}
LONGER = "a longer --deadline or distribute(..., timeout=...) waits longer"
_JOIN = "if it had fewer batches, use run.join()"


def describe(tag: str) -> str:
    """A tag in words, to follow "its" or "the": gradients/3 -> gradients (bucket 3)."""
    kind, _, part = tag.partition("/")
    if tag in _WORDS:
        return _WORDS[tag]
    if kind not in ("gradients", "weights", "buffers"):
        return f"message ({tag})"
    if part.isdecimal():
        return f"{kind} (bucket {part})"
    return f"{kind} ({part})" if part else kind


@dataclass(frozen=True)
class Wait:
    """Worker `rank` waits for one of these peers' message of a tag, or for a peer to take one."""

    rank: int
    peers: Sequence[int]
    tag: str
    sends: bool = False

    def __str__(self) -> str:
        return self._without(None)

    def _without(self, lost: int | None) -> str:
        what = describe(self.tag)
        if len(self.peers) > 1:
            return f"worker {self.rank} waited for the {what} of worker {' or '.join(map(str, self.peers))}"
        peer = self.peers[0]
        if self.sends:
            return f"worker {self.rank} waited to send {what} to {'it' if peer == lost else f'worker {peer}'}"
        if peer == lost:
            return f"worker {self.rank} waited for its {what}"
        return f"worker {self.rank} waited for the {what} of worker {peer}"

    def silent(self, seconds: float) -> PeerLost:
        if len(self.peers) > 1:
            names = ", ".join(map(str, self.peers))
            return PeerLost(f"workers {names} were silent for {seconds:g} s while {self}; {LONGER}")
        (peer,) = self.peers
        return PeerLost(f"worker {peer} was silent for {seconds:g} s while {self._without(peer)}; {LONGER}", peer)

    def left(self) -> PeerLost:
        """Whoever is waited for has said goodbye."""
        if len(self.peers) > 1:
            names = ", ".join(map(str, self.peers))
            return PeerLost(f"workers {names} have all left the run while {self}; {_JOIN.replace('it', 'they')}")
        (peer,) = self.peers
        return PeerLost(f"worker {peer} has left the run while {self._without(peer)}; {_JOIN}", peer)

    def died(self, peer: int, how: str = "") -> PeerLost:
        return PeerLost(f"worker {peer} died{how} while {self._without(peer)}", peer)

    def dead(self, peer: int) -> PeerLost:
        """It had died before."""
        return PeerLost(f"worker {peer} is dead: {self._without(peer)}", peer)
