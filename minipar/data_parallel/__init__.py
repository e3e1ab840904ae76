"""Data parallel: every rank holds the whole model and works on its own rows of the batch; then the gradients are summed.

``average`` does it after the backward pass, in the fewest lines; ``buckets`` during it, so that the communication is hidden.
"""

from minipar.data_parallel.average import Average, average_gradients
from minipar.data_parallel.buckets import Buckets
from minipar.data_parallel.overlapped import Overlapped
from minipar.data_parallel.replicas import broadcast_buffers, start_equal

__all__ = ["Average", "Buckets", "Overlapped", "average_gradients", "broadcast_buffers", "start_equal"]
