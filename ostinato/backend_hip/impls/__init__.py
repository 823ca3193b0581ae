"""Implementation rows, one file a family. `ROWS` is the whole list; nothing registers itself.

The kernels of the host reduce in an order that follows from a row's own sizes: whatever way of sharing the work they take, a row of a result has the same bits
alone and in any company. Only sums over a whole tensor have no rows.
"""

from __future__ import annotations

from ostinato.backend_hip.impls.attention import ATTENTION_ROWS
from ostinato.backend_hip.impls.attention_backward import ATTENTION_BACKWARD_ROWS
from ostinato.backend_hip.impls.elementwise import ELEMENTWISE_ROWS
from ostinato.backend_hip.impls.elementwise_backward import ELEMENTWISE_BACKWARD_ROWS
from ostinato.backend_hip.impls.linear import LINEAR_ROWS
from ostinato.backend_hip.impls.loss import LOSS_ROWS
from ostinato.backend_hip.impls.matmul import MATMUL_ROWS
from ostinato.backend_hip.impls.movement import MOVEMENT_ROWS
from ostinato.backend_hip.impls.movement_backward import MOVEMENT_BACKWARD_ROWS
from ostinato.backend_hip.impls.norm import NORM_ROWS
from ostinato.backend_hip.impls.norm_backward import NORM_BACKWARD_ROWS
from ostinato.backend_hip.impls.optimizer import OPTIMIZER_ROWS
from ostinato.backend_hip.impls.reduce import REDUCE_ROWS
from ostinato.backend_hip.impls.rope_store import ROPE_STORE_ROWS
from ostinato.backend_hip.impls.rotary import ROTARY_ROWS
from ostinato.backend_hip.impls.selection import SELECTION_ROWS
from ostinato.ir.target import Impl

__all__ = ["ROWS"]

ROWS: tuple[Impl, ...] = (
    *LINEAR_ROWS,
    *MATMUL_ROWS,
    *NORM_ROWS,
    *ROTARY_ROWS,
    *ROPE_STORE_ROWS,
    *ATTENTION_ROWS,
    *ELEMENTWISE_ROWS,
    *MOVEMENT_ROWS,
    *REDUCE_ROWS,
    *SELECTION_ROWS,
    *LOSS_ROWS,
    *NORM_BACKWARD_ROWS,
    *ELEMENTWISE_BACKWARD_ROWS,
    *MOVEMENT_BACKWARD_ROWS,
    *ATTENTION_BACKWARD_ROWS,
    *OPTIMIZER_ROWS,
)
