"""Process groups made by the learner's own code."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from course import Ranks


def sum_in_a_new_group() -> int:
    total = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(total, group=dist.new_group([0, 1, 2]))
    return int(total)


def test_new_groups_meet_in_every_run_and_after_a_recovery(ranks: Callable[[int], Ranks]) -> None:
    pool = ranks(3)
    assert pool.run(sum_in_a_new_group, timeout=90) == [6, 6, 6]
    assert pool.run(sum_in_a_new_group, timeout=90) == [6, 6, 6]
    pool.start(dist.barrier).result()
    pool.start(lambda: dist.get_rank() or dist.barrier()).stop()
    assert pool.run(sum_in_a_new_group, timeout=90) == [6, 6, 6]
