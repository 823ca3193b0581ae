"""Capture and replay on a device: small random decoders, eager = planned = captured bit for bit, the graph proven to be the plan, replays on poisoned memory.

The decoders go the whole way of a real model: a checkpoint on disk, the passes for the device's rows, the plan and its proof, weights packed and loaded.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from ostinato.backend_hip.hip_device import HipDevice
from ostinato.compiler import compile as compile_model
from ostinato.frontend.model import Model, load
from ostinato.ir.types import Array, DType
from ostinato.runtime.device import Device
from ostinato.runtime.executable import Executable
from ostinato.tools.conformance.objects import Failed, Skipped, checked
from ostinato.tools.conformance.report import CaptureNumbers, CheckVerdict

__all__ = ["random_decoder", "run_replay"]

_CONFIG: Mapping[str, object] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_TOKENS = 16
"""Enough of them that products may be the vendor's."""
_POISON = 0xFF
"""A byte that makes NaN of every float and a negative index of every integer."""


def random_decoder(folder: Path, dtype: DType, seed: int) -> Model:
    """A Llama of two layers with random weights of that dtype, written to a folder and opened from there."""
    rng = np.random.default_rng(seed)
    hidden, wide, vocabulary = 64, 128, 96
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qo"}
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (hidden // 2, hidden) for name in "kv"}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (wide, hidden) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (hidden, wide)
    tensors = {
        name: (rng.standard_normal(shape) * 0.2 + (len(shape) == 1)).astype(dtype.numpy)
        for name, shape in shapes.items()
    }
    (folder / "config.json").write_text(json.dumps(_CONFIG), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return load(folder)


class _Decoder:
    """A compiled decoder and what one call of it gives in the planned mode."""

    def __init__(self, device: Device, model: Model, seed: int) -> None:
        self.device = device
        self.planned = compile_model(
            model, buckets={"B": [1], "T": [_TOKENS]}, context=32, device=device, mode="planned"
        )
        (self.entry,) = self.planned.entries
        rng = np.random.default_rng(seed)
        self.ids = rng.integers(0, 96, (1, _TOKENS), dtype=np.int32)
        self.expected = self.outcome(self.planned)

    def outcome(self, exe: Executable) -> dict[str, Array]:
        """Every output and the bytes of the caches after one call on zeroed caches."""
        exe.reset_state()
        found = dict(exe(input_ids=self.ids))  # type: ignore[operator]
        if exe.mode != "reference":
            state = exe.regions.state
            found["the caches"] = state.read(np.uint8, (state.nbytes,))
        return found

    def compare(self, exe: Executable) -> None:
        """Raises `Failed` unless a call gives the same bits as the planned mode."""
        found = self.outcome(exe)
        for name, wanted in self.expected.items():
            if found[name].tobytes() != wanted.tobytes():
                off = int((found[name] != wanted).sum())
                raise Failed(f"{name}: {off} of {wanted.size} values differ between {exe.mode} and planned")


def run_replay(
    device: Device, seed: int, *, replays: int, numbers: list[CaptureNumbers], advance: Callable[[str], None]
) -> Iterator[CheckVerdict]:
    """The verdict on each check, for weights in f32 and bf16; what graphs were read back as is added to `numbers`."""
    for dtype in (DType.F32, DType.BF16):
        with tempfile.TemporaryDirectory(prefix="ostinato-conformance-") as folder:
            made: list[_Decoder] = []

            def ready(folder: str = folder, dtype: DType = dtype, made: list[_Decoder] = made) -> str:
                made.append(_Decoder(device, random_decoder(Path(folder), dtype, seed), seed))
                plan = made[0].planned.entries[made[0].entry]
                return f"{len(plan.steps)} steps, {plan.stats.arena_bytes} bytes of arena"

            what = f"decoder in {dtype.value}"
            advance(what)
            yield checked(f"{what}: planned", ready)
            if not made:
                continue
            decoder = made[0]
            for name, check in (
                ("near the reference", _reference),
                ("eager = planned", _eager),
                ("guarded = planned", _guarded),
                ("captured = planned", _captured(numbers)),
                (f"{replays} replays on poisoned memory", _replays(replays)),
            ):
                advance(f"{what}: {name}")
                yield checked(f"{what}: {name}", lambda check=check, decoder=decoder: check(decoder))  # type: ignore[misc]


def _reference(decoder: _Decoder) -> str:
    found = decoder.outcome(decoder.planned.clone(mode="reference"))["logits"]
    wanted = decoder.expected["logits"]
    off, spread = float(np.abs(found - wanted).max()), float(found.std())
    if not off <= 0.05 * spread:
        raise Failed(f"logits are up to {off:.3g} from the reference, whose spread is {spread:.3g}")
    return f"logits within {off / spread:.2g} of their spread"


def _eager(decoder: _Decoder) -> str:
    decoder.compare(decoder.planned.clone(mode="eager"))
    return "the same bits"


def _guarded(decoder: _Decoder) -> str:
    decoder.compare(decoder.planned.clone(mode="guarded"))
    return "the same bits, and no byte changed that is not a step's own"


def _captured(numbers: list[CaptureNumbers]) -> Callable[[_Decoder], str]:
    def check(decoder: _Decoder) -> str:
        if not decoder.device.captures:
            raise Skipped("a CPU has no graphs")
        exe = decoder.planned.clone(mode="captured")
        reports = exe.captures()
        numbers.extend(
            CaptureNumbers(
                entry=report.entry,
                launches=report.launches,
                graph_nodes=report.graph_nodes,
                dependencies=report.dependencies,
                early=report.early,
                copies=report.copies,
                fills=report.fills,
                vendor_nodes=report.vendor_nodes,
                opaque=len(report.opaque),
            )
            for report in reports
        )
        decoder.compare(exe)
        return f"the same bits, {len(reports)} graphs proven to be the plan"

    return check


def _replays(count: int) -> Callable[[_Decoder], str]:
    def check(decoder: _Decoder) -> str:
        device = decoder.device
        exe = decoder.planned.clone(mode="captured" if device.captures else "planned")
        decoder.compare(exe)
        before = _used(device)
        for _ in range(count):
            exe.regions.arena.fill(_POISON)
            exe.regions.io.fill(_POISON)
            decoder.compare(exe)
        after = _used(device)
        if before != after:
            raise Failed(
                f"allocated bytes went from {before[0]} to {after[0]} (of the driver's: {before[1]}, {after[1]})"
            )
        return f"{exe.mode}: the same bits each time, memory flat" if before != (0, 0) else f"{exe.mode}: the same bits"

    return check


def _used(device: Device) -> tuple[int, int]:
    """Bytes that are allocated, and that the driver gave; zeros on a CPU, which does not count."""
    if not isinstance(device, HipDevice):
        return (0, 0)
    counters = device.native.counters
    return (counters.current_bytes, counters.reserved_bytes)
