"""Ostinato compiles a transformer step once, gives every byte a fixed, proven address, and replays the step.

    import ostinato as ost
    llm = ost.LLM("smollm2")
    print(llm.generate("The capital of France is", ost.SamplingParams(max_tokens=8, temperature=0))[0].text)

The public names below are loaded when they are first used, so that importing a folder of the package costs only that folder.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato import audit, hip, ops
    from ostinato.artifact import Artifact, load_executable, read_artifact
    from ostinato.compiler import (
        compile,  # noqa: A004 - the design's name
        compile_encoder,
    )
    from ostinato.embedder import Embedder
    from ostinato.extending import Extension, extend
    from ostinato.frontend.conversation import chat_examples
    from ostinato.frontend.export import export_model
    from ostinato.frontend.fresh import new_model
    from ostinato.frontend.model import CacheShape, Model, load
    from ostinato.frontend.training import TrainingShape
    from ostinato.ir.decision import Decision, Rejection
    from ostinato.ir.errors import (
        AddressChanged,
        ArtifactError,
        BackendError,
        BoundsError,
        CapacityError,
        ConfigError,
        DeviceUnavailable,
        DTypeError,
        InputError,
        LayoutError,
        LifecycleError,
        NonFiniteLoss,
        NotYetAvailable,
        OstinatoError,
        PlanError,
        ShapeError,
        StaleArtifact,
        TextError,
        UserCodeError,
        VerificationError,
        WeightsError,
    )
    from ostinato.ir.example import Example
    from ostinato.ir.explain import Explanation
    from ostinato.ir.precision import PrecisionPolicy
    from ostinato.ir.selection_policy import SelectionPolicy
    from ostinato.llm import LLM
    from ostinato.ops import Stream, TensorView
    from ostinato.passes.choice import RowChoice
    from ostinato.passes.fold_constants import FoldConstants
    from ostinato.passes.pipeline import PipelineOptions
    from ostinato.passes.policy import Policy
    from ostinato.runtime.audit import AuditReport
    from ostinato.runtime.encode import EmbedExecutable
    from ostinato.runtime.executable import Executable
    from ostinato.runtime.forward import TextExecutable
    from ostinato.runtime.logprobs import Logprob
    from ostinato.runtime.output import AsyncTextStream, RequestOutput, TextStream
    from ostinato.runtime.sampling import SamplingParams
    from ostinato.runtime.training.checkpoint import Checkpoints, Snapshot
    from ostinato.runtime.training.dataset import TokenDataset
    from ostinato.runtime.training.optimizer import SGD, AdamW
    from ostinato.runtime.training.results import StepResult
    from ostinato.runtime.training.sft import ExampleDataset
    from ostinato.runtime.training.step import TrainStep
    from ostinato.stages import Lowered, Planned, Traced, trace
    from ostinato.tools.bisect.search import bisect
    from ostinato.tools.compare.comparison import compare
    from ostinato.tools.profile.breakeven import breakeven
    from ostinato.tools.repro.run import repro
    from ostinato.tools.view.pictures import view
    from ostinato.tracing import TraceSession
    from ostinato.training import Recipe, plan_training, train_step

__all__ = [
    "LLM",
    "SGD",
    "AdamW",
    "AddressChanged",
    "Artifact",
    "ArtifactError",
    "AsyncTextStream",
    "AuditReport",
    "BackendError",
    "BoundsError",
    "CacheShape",
    "CapacityError",
    "Checkpoints",
    "ConfigError",
    "DTypeError",
    "Decision",
    "DeviceUnavailable",
    "EmbedExecutable",
    "Embedder",
    "Example",
    "ExampleDataset",
    "Executable",
    "Explanation",
    "Extension",
    "FoldConstants",
    "InputError",
    "LayoutError",
    "LifecycleError",
    "Logprob",
    "Lowered",
    "Model",
    "NonFiniteLoss",
    "NotYetAvailable",
    "OstinatoError",
    "PipelineOptions",
    "PlanError",
    "Planned",
    "Policy",
    "PrecisionPolicy",
    "Recipe",
    "Rejection",
    "RequestOutput",
    "RowChoice",
    "SamplingParams",
    "SelectionPolicy",
    "ShapeError",
    "Snapshot",
    "StaleArtifact",
    "StepResult",
    "Stream",
    "TensorView",
    "TextError",
    "TextExecutable",
    "TextStream",
    "TokenDataset",
    "TraceSession",
    "Traced",
    "TrainStep",
    "TrainingShape",
    "UserCodeError",
    "VerificationError",
    "WeightsError",
    "__version__",
    "audit",
    "bisect",
    "breakeven",
    "chat_examples",
    "compare",
    "compile",
    "compile_encoder",
    "export_model",
    "extend",
    "hip",
    "load",
    "load_executable",
    "new_model",
    "ops",
    "plan_training",
    "read_artifact",
    "repro",
    "trace",
    "train_step",
    "view",
]

_HOMES = {
    "ostinato.artifact": ("Artifact", "load_executable", "read_artifact"),
    "ostinato.compiler": ("compile", "compile_encoder"),
    "ostinato.stages": ("Lowered", "Planned", "Traced", "trace"),
    "ostinato.embedder": ("Embedder",),
    "ostinato.extending": ("Extension", "extend"),
    "ostinato.frontend.conversation": ("chat_examples",),
    "ostinato.frontend.export": ("export_model",),
    "ostinato.frontend.fresh": ("new_model",),
    "ostinato.frontend.model": ("CacheShape", "Model", "load"),
    "ostinato.frontend.training": ("TrainingShape",),
    "ostinato.ir.decision": ("Decision", "Rejection"),
    "ostinato.ir.example": ("Example",),
    "ostinato.ir.explain": ("Explanation",),
    "ostinato.ir.precision": ("PrecisionPolicy",),
    "ostinato.ir.selection_policy": ("SelectionPolicy",),
    "ostinato.llm": ("LLM",),
    "ostinato.audit": ("audit",),
    "ostinato.hip": ("hip",),
    "ostinato.ops": ("Stream", "TensorView", "ops"),
    "ostinato.passes.choice": ("RowChoice",),
    "ostinato.passes.fold_constants": ("FoldConstants",),
    "ostinato.passes.pipeline": ("PipelineOptions",),
    "ostinato.passes.policy": ("Policy",),
    "ostinato.runtime.audit": ("AuditReport",),
    "ostinato.runtime.encode": ("EmbedExecutable",),
    "ostinato.runtime.executable": ("Executable",),
    "ostinato.runtime.forward": ("TextExecutable",),
    "ostinato.runtime.logprobs": ("Logprob",),
    "ostinato.runtime.output": ("AsyncTextStream", "RequestOutput", "TextStream"),
    "ostinato.runtime.sampling": ("SamplingParams",),
    "ostinato.runtime.training.checkpoint": ("Checkpoints", "Snapshot"),
    "ostinato.runtime.training.dataset": ("TokenDataset",),
    "ostinato.runtime.training.optimizer": ("SGD", "AdamW"),
    "ostinato.runtime.training.results": ("StepResult",),
    "ostinato.runtime.training.sft": ("ExampleDataset",),
    "ostinato.runtime.training.step": ("TrainStep",),
    "ostinato.tools.bisect.search": ("bisect",),
    "ostinato.tools.compare.comparison": ("compare",),
    "ostinato.tools.profile.breakeven": ("breakeven",),
    "ostinato.tools.repro.run": ("repro",),
    "ostinato.tools.view.pictures": ("view",),
    "ostinato.tracing": ("TraceSession",),
    "ostinato.training": ("Recipe", "plan_training", "train_step"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("ostinato.ir.version").VERSION
    if name in _HOME:
        try:
            home = import_module(_HOME[name])
            return home if name in ("audit", "hip", "ops") else getattr(home, name)
        except ImportError as error:
            if "_native" in str(error):
                error.add_note(
                    "The native module is not beside this package. In a checkout `pip install .` does not put it there, and Python prefers the "
                    "folder it is started in: start it elsewhere, or use `make install` (or `pip install --editable .`)."
                )
            raise
    if name in __all__:  # the exception families
        return getattr(import_module("ostinato.ir.errors"), name)
    raise AttributeError(f"module 'ostinato' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
