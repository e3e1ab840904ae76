"""Mixture of experts, and the experts spread over the ranks: each token goes to a few of many MLPs, wherever these are.

``GPTConfig(experts=8, top_k=2, moe=MoEOptions(...))`` makes every MLP of a GPT a ``MoE``; ``parallelize(model, mesh)`` spreads its
experts over ``mesh["ep"]``.
"""

from minipar.expert_parallel.layer import MoE, auxiliary_loss, end_step, moe_layers
from minipar.expert_parallel.options import MoEOptions
from minipar.expert_parallel.parallel import parallelize

__all__ = ["MoE", "MoEOptions", "auxiliary_loss", "end_step", "moe_layers", "parallelize"]
