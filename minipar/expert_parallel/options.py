"""How a mixture of experts routes, limits and balances its tokens: every choice in one place, checked early."""

from __future__ import annotations

from dataclasses import dataclass

ROUTERS = ("top-k", "switch", "noisy", "sigmoid", "expert-choice")
ORDERS = ("position", "score")
SCOPES = ("global", "rank")


@dataclass(frozen=True)
class MoEOptions:
    """Options of every MoE layer of a model (``GPTConfig.moe``). The number of experts and ``top_k`` are the model's own."""

    router: str = "top-k"  # or "switch", "noisy", "sigmoid", "expert-choice": see minipar.expert_parallel.router
    softmax: str = "before"  # "before" or "after" the k best are selected
    renormalise: bool | None = None  # a token's weights add up to 1; None: where top_k > 1
    capacity: float | None = None  # capacity factor; None: dropless
    order: str = "position"  # who keeps its place in a full expert: the first, or (by "score") the most wanted
    scope: str = "global"  # capacity counted over the "global" batch, or for the tokens of each "rank" alone
    balance: float = 0.01  # weight of the balance loss
    z: float = 0.0  # weight of the z-loss
    bias_rate: float = 0.001  # step of the loss-free bias (sigmoid router)
    shared: int = 0  # experts that every token passes through

    def __post_init__(self) -> None:
        for name, known in (("router", ROUTERS), ("softmax", ("before", "after")), ("order", ORDERS), ("scope", SCOPES)):
            if getattr(self, name) not in known:
                raise ValueError(f"MoEOptions.{name} is one of {', '.join(known)}, not {getattr(self, name)!r}")
        if self.capacity is not None and not self.capacity > 0:
            raise ValueError(
                f"a capacity factor of {self.capacity} leaves no expert any room: give one above 0, or None for dropless"
            )
        for name in ("balance", "z", "bias_rate", "shared"):
            if getattr(self, name) < 0:
                raise ValueError(f"MoEOptions.{name} cannot be negative, got {getattr(self, name)}")

    @property
    def capacity_factor(self) -> float | None:
        """The factor in force: experts that choose their tokens need one, and take as many as an even spread gives them."""
        return 1.0 if self.capacity is None and self.router == "expert-choice" else self.capacity
