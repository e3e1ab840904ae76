"""Checked exercises: a learner's function runs on real ranks, and what it hears names rank, tensor and cause.

In a notebook::

    from course.exercises import check, hint

    def my_all_reduce(x, axis): ...
    check("ring-all-reduce", my_all_reduce)     # the last line of a cell: shows the verdict
    hint("ring-all-reduce")                     # folded: each hint opens the next

The cell that is stored in a notebook holds a first attempt that is wrong in an instructive way, so that the notebook runs from
top to bottom anywhere, and its page shows the feedback. Make that attempt one of the exercise's wrong answers: then a test knows
its message.

To add an exercise, write one file here that defines ``EXERCISE`` (see ``exercise.Exercise``; the shortest is ``sum_across_ranks``):

* ``trial(answer, case)`` runs on every rank, with the process group ready. It makes its inputs from ``case.seed`` (float64), calls
  ``answer(...)``, and returns what the judge needs. Pass copies where the answer might write into its input.
* ``judge(seen)`` runs in the notebook's process and returns None or one sentence. ``seen.values`` is what ``trial`` returned, by
  rank; ``seen.calls(rank)``, ``seen.sent(rank)``, ``seen.peaks[rank]`` and ``seen.timeline`` are counted from the answer's own
  calls. ``findings`` has the sentences that exercises share. Judge by counts and by order, never by seconds.
* ``wrong`` lists answers that somebody will give, each with a part of its message that no other wrong answer gets.
* ``cases(ranks=(4, 3), seeds=(0, 1))`` sets the world sizes; ``settings=`` varies whatever else matters. An exercise that needs no
  communication (an order of a pipeline's actions, a placement, a number) uses ``ranks=(1,)`` and several settings, and
  ``takes=None`` where the answer is a value instead of a function. It still runs in a process of its own, so that one that never
  ends is stopped.

``tests/exercises`` then tries the reference and every wrong answer of every exercise by itself.
"""

from course.exercises.check import check, hint
from course.exercises.verdict import Verdict

__all__ = ["Verdict", "check", "hint"]
