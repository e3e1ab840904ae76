"""Pipeline parallelism: the layers of a model spread over ranks as stages, and the order in which microbatches pass them.

A ``Schedule`` is one object from edit to check to run: ``build`` makes it, ``validate`` refuses what is illegal, ``simulate``
predicts it, ``lower`` adds sends and receives, and ``minipar.pipeline_parallel.run`` executes it on real ranks.
"""

from minipar.pipeline_parallel.action import Action, ScheduleError, Transfer
from minipar.pipeline_parallel.build import NAMES, build, default_chunks
from minipar.pipeline_parallel.partition import partition
from minipar.pipeline_parallel.schedule import Schedule

__all__ = ["NAMES", "Action", "Schedule", "ScheduleError", "Transfer", "build", "default_chunks", "partition"]
