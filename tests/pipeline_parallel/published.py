"""Figures of Qi et al. 2023, "Zero Bubble Pipeline Parallelism" (arXiv:2401.10241): tables 3, 5 and 9.

Table 9 gives the profiled milliseconds of F, I ("B" there) and W on one stage and of a message, table 5 the bubble rates they
lead to. Chunks of 1F1B-I: as many as a stage has layers, counting the embedding and the head as one each (table 3).
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    ranks: int
    microbatches: int
    forward: float
    input_grad: float
    weight_grad: float
    comm: float
    chunks: int  # of 1F1B-I
    one_f_one_b: float
    interleaved: float
    zb_h1: float
    zb_1p: float
    zb_2p: float

    @property
    def costs(self) -> dict[str, float]:
        return {"forward": self.forward, "input_grad": self.input_grad, "weight_grad": self.weight_grad, "comm": self.comm}

    @property
    def chunk_costs(self) -> dict[str, float]:
        return {name: cost if name == "comm" else cost / self.chunks for name, cost in self.costs.items()}


TABLE_5 = {  # two of the paper's twelve rows: those that were checked against its tables
    "1.5B-24": Row(8, 24, 18.522, 18.086, 9.337, 0.601, 3, 0.2431, 0.1055, 0.1585, 0.1585, 0.0433),
    "14.6B-64": Row(16, 64, 11.307, 11.254, 8.101, 0.379, 3, 0.2082, 0.0852, 0.1088, 0.1088, 0.0054),
}
