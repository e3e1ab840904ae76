"""What a way of splitting will cost before anyone runs it: flops, bytes, memory and time, on any cluster.

``predict(model, split, hardware)`` judges one split, ``plan(model, hardware, ranks, batch)`` ranks them all.
"""

from minipar.planner.clock import EFFICIENCIES, Clock, Efficiency, StepTime
from minipar.planner.memory import FULL_ADAM, MIXED_ADAM, PLAIN_SGD, BytesPerParam, Memory, layer_activations, memory, rank_params
from minipar.planner.search import Plan, Plans, TooLarge, plan, predict, splits
from minipar.planner.shape import Transformer, training_days, utilisation
from minipar.planner.split import Split

__all__ = [
    "EFFICIENCIES",
    "FULL_ADAM",
    "MIXED_ADAM",
    "PLAIN_SGD",
    "BytesPerParam",
    "Clock",
    "Efficiency",
    "Memory",
    "Plan",
    "Plans",
    "Split",
    "StepTime",
    "TooLarge",
    "Transformer",
    "layer_activations",
    "memory",
    "plan",
    "predict",
    "rank_params",
    "splits",
    "training_days",
    "utilisation",
]
