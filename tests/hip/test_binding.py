"""Executables of a GPU over memory of their caller's: inputs, outputs and arena on the device, run and captured where they lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.runtime.batch import Piece, pack
from tests.backend_hip.gpu.device_memory import OnDevice
from tests.frontend.small_families import small_model


def test_memory_of_the_device_is_read_and_written_where_it_lies(
    gpu: HipDevice, machine: EmulatedGpu, tmp_path: Path, seed: int
) -> None:
    model = small_model("llama", tmp_path, seed)
    ready = ost.compile(model, buckets={"B": [1], "T": [4]}, context=16, device=gpu, mode="planned")
    plan, memory = ready.bucket(4, 1), OnDevice(gpu)
    packed, _ = pack(plan, [Piece(0, np.array([5, 6, 7, 8], np.int32), 0, True)], ready.block_table())
    expected = ready.run(plan.name, packed)["logits"]
    inputs = {name: memory.put(array) for name, array in packed.items()}
    out = memory.empty(*expected.shape)
    bound = ready.bind(entry=plan.name, inputs=inputs, outputs={"logits": out}, arena=memory.bytes(ready.memory.arena))
    copies = machine.count("hipMemcpyAsync")
    bound.run()
    assert machine.count("hipMemcpyAsync") <= copies + 1, "the status word, and no value"
    assert memory.get(out).tobytes() == expected.tobytes()
    (report,) = bound.capture()
    assert report.launches == report.graph_nodes > 0
    for ids in ([9, 10, 11, 12], [5, 6, 7, 8]):
        inputs["input_ids"].owner.write(np.array(ids, np.int32))
        packed["input_ids"][:] = ids
        out.owner.fill(0xFF)
        bound.run()
        assert memory.get(out).tobytes() == ready.run(plan.name, packed)["logits"].tobytes()
    inputs["input_ids"].owner.free()
    with pytest.raises(ost.AddressChanged, match=r"input_ids: bound at 0x.*the owner of the memory freed it") as caught:
        bound.run()
    assert (caught.value.kind, caught.value.new) == ("freed", None)


def test_memory_of_the_host_is_refused(gpu: HipDevice, tmp_path: Path, seed: int) -> None:
    ready = ost.compile(small_model("llama", tmp_path, seed), buckets={"B": [1], "T": [4]}, context=16, device=gpu)
    with pytest.raises(ost.ConfigError, match=r"input_ids: the buffer is on cpu, the executable runs on hip:1"):
        ready.bind(entry=ready.bucket(4, 1).name, inputs={"input_ids": np.zeros(4, np.int32)})


def test_memory_that_the_vendors_product_cannot_take_is_refused(
    devices: dict[int, HipDevice], machine: EmulatedGpu, tmp_path: Path, seed: int
) -> None:
    device = devices[64]
    ready = ost.compile(
        small_model("llama", tmp_path, seed), buckets={"B": [16], "T": [1]}, context=16, device=device, mode="planned"
    )
    (plan,) = ready.entries.values()
    shape = next(binding.type.static_shape for binding in plan.outputs if binding.name == "logits")
    buffer = device.allocate(4 * int(np.prod(shape)) + 4)
    skewed = ost.TensorView(buffer.address + 4, buffer.nbytes - 4, shape, None, "f32", device.name, buffer)
    with pytest.raises(ost.LayoutError, match="multiples of 16 bytes, its d lies at") as caught:
        ready.bind(outputs={"logits": skewed})
    assert caught.value.node == "logits"
