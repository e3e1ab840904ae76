"""The peak of live tensor bytes is exact: what is freed is forgotten, what existed before or is a view costs nothing."""

import torch

from course.exercises.peak import PeakBytes


def test_only_what_lives_at_once_adds_up() -> None:
    with PeakBytes() as peak:
        for _ in range(5):
            x = torch.ones(100, dtype=torch.float64)
            del x
    assert (peak.most, peak.now) == (800, 0)


def test_tensors_alive_together_add_up() -> None:
    with PeakBytes() as peak:
        kept = [torch.ones(100, dtype=torch.float64) for _ in range(5)]
    assert (peak.most, len(kept)) == (4000, 5)


def test_views_and_tensors_made_before_cost_nothing() -> None:
    x = torch.ones(100)
    with PeakBytes() as peak:
        x.add_(1)
        parts = x.view(10, 10).chunk(2)
    assert (peak.most, len(parts)) == (0, 2)


def test_what_autograd_keeps_for_backward_is_counted_until_backward() -> None:
    x = torch.ones(1000, requires_grad=True)
    with PeakBytes() as peak:
        y = x.exp().exp().sum()
        held = peak.now
        y.backward()
        del y
    assert held == 2 * 4000 + 4  # each exp keeps its output
    assert peak.now == 4000  # the gradient of x
