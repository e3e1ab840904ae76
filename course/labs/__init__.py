"""Labs: one for each lesson, with sliders, Run and Stop, and what theory predicts beside what real ranks do.

In a notebook, as the last line of a cell::

    from course import labs
    labs.collectives(ranks=8)       # values given by name replace the sliders' first ones

Moving a slider redraws the prediction at once and runs the ranks again a moment later; a newer value ends the older run. Impossible
settings are refused with the reason. Where nobody can move a slider (continuous integration, ``minipar bake``) the first values are
predicted and run at once, errors and all, and the lab shows as one finished picture with a text table.

JupyterLab from 4.4 on sends what widgets have to say through a subshell of its own, beside a running cell. Where it does not (the
setting "Kernel Comms over subshells" is off, or the kernel has none), sliders and Stop answer once the running cell has ended. The
ranks of a lab run in a thread and keep no cell busy, so nothing is lost but the moment.

To write a lab, make a file ``lab_NAME.py`` with a subclass of ``base.Lab``, and add a function for it here:

* ``controls()`` lists ``Slider``, ``Steps`` (a few values on a slider), ``Choice`` (a menu) and ``Text`` by name. All else gets
  their values as ``v`` (``v.ranks``). ``refuse(v)`` returns the reason why a combination is impossible; ``make_views()`` returns
  the canvas views (``course.views``), from the top.
* ``predict(v)`` draws the theory: ``view.show(predicted=...)``, ``self.figures.predict(name, value, unit)``. It is called for every
  step of a moving slider, so keep it below 20 ms, and take away what the ranks showed for other values.
* ``measure(go, v)`` runs the ranks in a thread of its own and says in a line how its numbers came about:
  ``timeline, out = go(n, function, *args, live=[view])`` draws while they run, then ``self.figures.find(name, value, unit,
  source)``. It is ordinary code from top to bottom: where a newer value arrives, ``go`` ends the run and leaves by ``Cancelled``.
  ``go.outcome`` is for runs that are meant to fail.
* What runs on ranks lives in ``work.py``: they import it, and must not import views. A function of a notebook travels by value.
* Hardware faster than this machine runs in slow motion: ``factor`` such that the run lasts about a second,
  ``go(..., hardware=slowed(cluster, factor), factor=factor)``; timelines come back in the hardware's own time, labelled paced.

``tests/labs`` holds every lab to this: predictions follow at once, refusals name the reason, and a finished picture comes without
a browser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course.labs.base import Lab

# The labs' own files are imported when they are used: ranks import this package for what they run, and need no views.


def ranks(**values: Any) -> Lab:
    """Lesson 0: something happens to one rank; who notices, when, and what are you told?"""
    from course.labs.lab_ranks import RanksLab

    return RanksLab(**values)


def collectives(**values: Any) -> Lab:
    """Lesson 1: time and bytes of an all-reduce, by ranks, size, algorithm and link."""
    from course.labs.lab_collectives import CollectivesLab

    return CollectivesLab(**values)


def averaging(**values: Any) -> Lab:
    """Lesson 3: ranks with unequal shards beside one process, by ranks, shard sizes and way of averaging."""
    from course.labs.lab_averaging import AveragingLab

    return AveragingLab(**values)


def data_parallel(**values: Any) -> Lab:
    """Lesson 4: how much of the communication buckets hide, by bucket size, layers, ranks, tokens and link."""
    from course.labs.lab_data_parallel import DataParallelLab

    return DataParallelLab(**values)


def pipeline(**values: Any) -> Lab:
    """Lessons 7, 8, 9: when each rank of a pipeline works and what it holds, by schedule, and an editor for its slots."""
    from course.labs.lab_pipeline import PipelineLab

    return PipelineLab(**values)


def tensor_parallel(**values: Any) -> Lab:
    """Lesson 10: an MLP whose matrices several ranks share, by ranks, width, order of the cuts, tokens and link."""
    from course.labs.lab_tensor_parallel import TensorParallelLab

    return TensorParallelLab(**values)


def long_context(**values: Any) -> Lab:
    """Lesson 11: attention over a sequence that is cut over the ranks, by ranks, sequence and method."""
    from course.labs.lab_long_context import LongContextLab

    return LongContextLab(**values)


def experts(**values: Any) -> Lab:
    """Lesson 12: the load of experts while they learn, by their number, router, balance, capacity, skew, ranks and placement."""
    from course.labs.lab_experts import ExpertsLab

    return ExpertsLab(**values)


def blend(**values: Any) -> Lab:
    """Lesson 15: a GPT split over every axis at once, by the size of each, microbatches, schedule, link and memory cap."""
    from course.labs.lab_blend import BlendLab

    return BlendLab(**values)
