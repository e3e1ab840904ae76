"""What a way of splitting will cost before anyone runs it: flops, bytes, memory and time, on any cluster.

``predict(model, split, hardware)`` judges one split, ``plan(model, hardware, ranks, batch)`` ranks them all. For the small models
that are run here, ``predict_step(Job(config, dp=2, pp=2), hardware)`` foretells one step of ``minipar.blend``: bytes by axis,
live memory, and the whole timeline.
"""

from minipar.planner.clock import EFFICIENCIES, Clock, Efficiency, StepTime
from minipar.planner.job import Job
from minipar.planner.job_memory import live_memory
from minipar.planner.memory import FULL_ADAM, MIXED_ADAM, PLAIN_SGD, BytesPerParam, Memory, layer_activations, memory, rank_params
from minipar.planner.pipeline import timeline
from minipar.planner.ranking import Ranking, rank_splits
from minipar.planner.search import Plan, Plans, TooLarge, plan, predict, splits
from minipar.planner.shape import Transformer, training_days, utilisation
from minipar.planner.split import Split
from minipar.planner.step import Step, predict_step
from minipar.planner.traffic import bytes_by_axis, bytes_by_link

__all__ = [
    "EFFICIENCIES",
    "FULL_ADAM",
    "MIXED_ADAM",
    "PLAIN_SGD",
    "BytesPerParam",
    "Clock",
    "Efficiency",
    "Job",
    "Memory",
    "Plan",
    "Plans",
    "Ranking",
    "Split",
    "Step",
    "StepTime",
    "TooLarge",
    "Transformer",
    "bytes_by_axis",
    "bytes_by_link",
    "layer_activations",
    "live_memory",
    "memory",
    "plan",
    "predict",
    "predict_step",
    "rank_params",
    "rank_splits",
    "splits",
    "timeline",
    "training_days",
    "utilisation",
]
