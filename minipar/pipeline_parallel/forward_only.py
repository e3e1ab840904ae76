"""The loss without the gradients: each stage passes on what it computes, and keeps nothing for a backward that never comes."""

from __future__ import annotations

import torch
from torch import Tensor

from minipar.data import Batch
from minipar.pipeline_parallel.action import Transfer
from minipar.pipeline_parallel.run import Pipeline


@torch.no_grad()
def evaluate(pipe: Pipeline, batch: Batch) -> Tensor:
    """This rank's share of the global mean loss of ``batch``, its part of the batch: zero but on the last stage.

    Every rank goes through the same line, microbatch by microbatch and stage by stage, and does what is its own: a message is
    placed at the same moment on both sides, so nobody waits for one that cannot come.
    """
    placement, me = pipe.schedule.placement, pipe.axis.rank
    loss = torch.zeros((), device=pipe.device, dtype=torch.float64)
    for microbatch, part in enumerate(batch.to(pipe.device).parts(pipe.schedule.microbatches)):
        shape = tuple(part.inputs.shape)
        for s, stage in sorted(pipe.stages.items()):
            if s and placement[s - 1] != me:
                pipe.mail.expect(Transfer("recv", "F", s - 1, microbatch, placement[s - 1]), shape)
            y = stage._layers(part, pipe.mail.take(("F", s - 1, microbatch)) if s else None, ())
            if stage.loss_sum is not None:
                loss += stage.loss_sum(y, part.targets).double() / part.total
                continue
            pipe.mail.put(("F", s, microbatch), y)
            if placement[s + 1] != me:
                pipe.mail.send(Transfer("send", "F", s, microbatch, placement[s + 1]), shape)
    pipe.mail.settle()
    return loss
