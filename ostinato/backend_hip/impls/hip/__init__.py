"""Implementation rows for GPUs, one file a family. `HIP_ROWS` is the whole list; nothing registers itself."""

from __future__ import annotations

from ostinato.backend_hip.impls.hip.attention import ATTENTION_ROWS
from ostinato.backend_hip.impls.hip.attention_backward import ATTENTION_BACKWARD_ROWS
from ostinato.backend_hip.impls.hip.attention_parts_backward import ATTENTION_PART_BACKWARD_ROWS
from ostinato.backend_hip.impls.hip.elementwise import ELEMENTWISE_ROWS
from ostinato.backend_hip.impls.hip.elementwise_backward import ELEMENTWISE_BACKWARD_ROWS
from ostinato.backend_hip.impls.hip.few_rows import FEW_ROWS_ROWS
from ostinato.backend_hip.impls.hip.linear import LINEAR_ROWS
from ostinato.backend_hip.impls.hip.linear_group import LINEAR_GROUP_ROWS
from ostinato.backend_hip.impls.hip.matmul import MATMUL_ROWS
from ostinato.backend_hip.impls.hip.movement import MOVEMENT_ROWS
from ostinato.backend_hip.impls.hip.movement_backward import MOVEMENT_BACKWARD_ROWS
from ostinato.backend_hip.impls.hip.norm import NORM_ROWS
from ostinato.backend_hip.impls.hip.norm_backward import NORM_BACKWARD_ROWS
from ostinato.backend_hip.impls.hip.optimizer import OPTIMIZER_ROWS
from ostinato.backend_hip.impls.hip.reduce import REDUCE_ROWS
from ostinato.backend_hip.impls.hip.reduce_backward import REDUCE_BACKWARD_ROWS
from ostinato.backend_hip.impls.hip.rope_store import ROPE_STORE_ROWS
from ostinato.backend_hip.impls.hip.rotary import ROTARY_ROWS
from ostinato.backend_hip.impls.hip.selection import SELECTION_ROWS
from ostinato.backend_hip.impls.hip.token_loss import TOKEN_LOSS_ROWS
from ostinato.backend_hip.impls.hip.vendor import VENDOR_ROWS
from ostinato.backend_hip.impls.hip.vendor_attention import VENDOR_ATTENTION_ROWS
from ostinato.ir.target import Impl

__all__ = ["HIP_ROWS"]

HIP_ROWS: tuple[Impl, ...] = (
    *LINEAR_ROWS,
    *LINEAR_GROUP_ROWS,
    *FEW_ROWS_ROWS,
    *MATMUL_ROWS,
    *NORM_ROWS,
    *ROTARY_ROWS,
    *ROPE_STORE_ROWS,
    *ATTENTION_ROWS,
    *ATTENTION_BACKWARD_ROWS,
    *ATTENTION_PART_BACKWARD_ROWS,
    *ELEMENTWISE_ROWS,
    *MOVEMENT_ROWS,
    *REDUCE_ROWS,
    *SELECTION_ROWS,
    *TOKEN_LOSS_ROWS,
    *NORM_BACKWARD_ROWS,
    *ELEMENTWISE_BACKWARD_ROWS,
    *REDUCE_BACKWARD_ROWS,
    *MOVEMENT_BACKWARD_ROWS,
    *OPTIMIZER_ROWS,
    *VENDOR_ROWS,
    *VENDOR_ATTENTION_ROWS,
)
