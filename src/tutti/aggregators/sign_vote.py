"""The majority vote of signs: every worker says up or down, and the majority has it, number by number.

    result = sign(sum(sign(x_i)))    1, -1, or 0 where the votes are equal

It stands fewer than half of the workers being bad where the honest ones agree, since nobody has more than one vote. NaN
does not vote. Nothing of a contribution's length is left: every step is as long as the learning rate, which has to be
chosen for it, and one worker alone takes the signs of its own gradient. Samples do not matter: nobody is weighted.

Paper: Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with majority vote is communication efficient and fault
tolerant" (2019).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tutti.aggregators.base import Aggregator


@dataclass
class SignVote(Aggregator):
    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        return contributions.sign().nan_to_num_(nan=0).sum(0).sign()
