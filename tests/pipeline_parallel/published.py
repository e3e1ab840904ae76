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


TABLE_5 = {
    "1.5B-24": Row(8, 24, 18.522, 18.086, 9.337, 0.601, 3, 0.2431, 0.1055, 0.1585, 0.1585, 0.0433),
    "1.5B-32": Row(8, 32, 18.513, 18.086, 9.331, 0.626, 3, 0.1985, 0.0818, 0.1242, 0.1242, 0.0039),
    "1.5B-64": Row(8, 64, 18.546, 18.097, 9.321, 0.762, 3, 0.1240, 0.0443, 0.0674, 0.0674, 0.0026),
    "6.2B-24": Row(8, 24, 29.718, 29.444, 19.927, 0.527, 4, 0.2347, 0.0808, 0.1323, 0.1323, 0.0029),
    "6.2B-32": Row(8, 32, 29.802, 29.428, 19.530, 0.577, 4, 0.1898, 0.0628, 0.1045, 0.1045, 0.0022),
    "6.2B-64": Row(8, 64, 29.935, 29.621, 19.388, 0.535, 4, 0.1091, 0.0320, 0.0554, 0.0554, 0.0010),
    "14.6B-48": Row(16, 48, 11.347, 11.248, 8.132, 0.377, 3, 0.2552, 0.1104, 0.1397, 0.1397, 0.0066),
    "14.6B-64": Row(16, 64, 11.307, 11.254, 8.101, 0.379, 3, 0.2082, 0.0852, 0.1088, 0.1088, 0.0054),
    "14.6B-128": Row(16, 128, 11.325, 11.308, 8.109, 0.378, 3, 0.1251, 0.0445, 0.0576, 0.0576, 0.0028),
    "28.3B-96": Row(32, 96, 10.419, 10.207, 7.715, 0.408, 2, 0.2646, 0.1493, 0.1421, 0.1421, 0.0038),
    "28.3B-128": Row(32, 128, 10.408, 10.204, 7.703, 0.408, 2, 0.2168, 0.1164, 0.1106, 0.1106, 0.0029),
    "28.3B-256": Row(32, 256, 10.402, 10.248, 7.698, 0.460, 2, 0.1352, 0.0624, 0.0594, 0.0594, 0.0018),
}
