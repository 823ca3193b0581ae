"""torch tensors and DLPack objects as memory: read in place, bf16 too, and refused where their bytes are not their values."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato import ops
from ostinato.ir.types import DType

pytestmark = pytest.mark.parity
torch: Any = pytest.importorskip("torch")


class Exported:
    """An object that has DLPack and nothing else; `versioned` as the exporters of today, else as those of the first version."""

    def __init__(self, tensor: Any, versioned: bool = True) -> None:
        self.tensor = tensor
        self.versioned = versioned

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.versioned:
            raise TypeError("__dlpack__() takes no arguments")
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


DTYPES = ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_read_where_they_lie(dtype: str) -> None:
    x = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    for tensor in (x, x.T, x[::2], x[:, 1:3], x[1], x[:0], x[1, 2]):
        for value in (tensor, Exported(tensor)):
            view = ost.TensorView.of(value)
            assert view.shape == tuple(tensor.shape)
            assert not view.elements or view.address == tensor.data_ptr()
            as_bits = tensor.to(torch.float64).numpy()
            assert np.array_equal(view.numpy().astype(np.float64), as_bits)
    assert ost.TensorView.of(x).owner is x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("versioned", [True, False])
def test_views_travel_through_dlpack_both_ways(dtype: str, versioned: bool) -> None:
    x = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    view = ost.TensorView.of(Exported(x, versioned))
    back = torch.from_dlpack(ost.TensorView.of(x).transpose())
    assert back.dtype == x.dtype
    assert torch.equal(back, x.T)
    assert back.data_ptr() == x.data_ptr() == view.address
    x[0, 0] = 1
    assert back[0, 0] == 1


def test_an_exporter_of_fresh_memory_keeps_it_for_the_call() -> None:
    """What an object exports may live only as long as the capsule."""

    class Fresh(Exported):
        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.clone().__dlpack__(**options)

    x = torch.full((1 << 18,), 2.0)
    out = np.empty(x.shape, np.float32)
    ops.scale(Fresh(x), factor=2.0, out=out)
    assert (out == 4).all()
    assert (ost.TensorView.of(Fresh(x)).numpy() == 2).all()


def test_operators_read_and_write_torch_tensors() -> None:
    x, gain = torch.randn(4, 64, dtype=torch.bfloat16), torch.ones(64)
    y = torch.empty(4, 64, dtype=torch.bfloat16)
    assert ops.rms_norm(x, gain, eps=1e-6, out=y) is y
    twin = np.empty((4, 64), ml_dtypes.bfloat16)
    ops.rms_norm(ost.TensorView.of(x), gain.numpy(), eps=1e-6, out=twin)
    assert y.view(torch.uint8).numpy().tobytes() == twin.tobytes()
    weight = torch.nn.Linear(64, 32, bias=False).weight
    packed = ops.pack(weight.detach(), out=torch.empty(ops.packed_bytes(weight.detach()), dtype=torch.uint8))
    z = torch.empty(4, 32)
    ops.linear(x.float(), packed, out=z)
    assert torch.allclose(z, x.float() @ weight.detach().T, rtol=2e-4, atol=2e-4)


def test_tensors_whose_bytes_are_not_their_values_are_refused() -> None:
    x = torch.ones(4)
    cases: list[tuple[Any, type[ost.OstinatoError], str]] = [
        (x.clone().requires_grad_(), ost.InputError, r"autograd[\s\S]*detach"),
        (torch.nn.Parameter(x), ost.InputError, "autograd"),
        (torch.zeros(2, dtype=torch.complex64).conj().imag, ost.LayoutError, r"negated[\s\S]*resolve_neg"),
        (x.to_sparse(), ost.LayoutError, r"no strides[\s\S]*to_dense"),
        (x.to("meta"), ost.InputError, "on meta"),
        (x.to(torch.complex64), ost.DTypeError, "torch.complex64 has no counterpart"),
        (Exported(x.clone().requires_grad_()), ost.InputError, "without a copy"),
    ]
    for tensor, family, text in cases:
        with pytest.raises(family, match=text):
            ops.silu(tensor, out=np.empty(4, np.float32))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_no_memory_are_refused() -> None:
    class Refusing(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, *arguments: Any, **options: Any) -> Any:
            raise KeyError("no")

    shrunk, moved = torch.ones(4), torch.arange(8.0)[4:]
    shrunk.untyped_storage().resize_(15)
    moved.untyped_storage().resize_(28)
    cases: list[tuple[Any, type[ost.OstinatoError], str]] = [
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), ost.InputError, "cannot be read as memory"),
        (torch.nn.parameter.UninitializedBuffer(), ost.InputError, "cannot be read as memory"),
        (torch.ones(4).as_subclass(Refusing), ost.InputError, "Refusing cannot be read as memory"),
        (shrunk, ost.BoundsError, "storage of the tensor was made smaller"),
        (moved, ost.BoundsError, "storage of the tensor was made smaller"),
        (torch.frombuffer(bytearray(17), dtype=torch.float32, offset=1), ost.LayoutError, "not aligned"),
    ]
    for tensor, family, text in cases:
        with pytest.raises(family, match=text):
            ops.silu(tensor, out=np.empty(4, np.float32))
    for freed, family in ((shrunk, ost.InputError), (moved, ost.BoundsError)):  # of an address of 0, and of 16
        freed.untyped_storage().resize_(0)
        with pytest.raises(family):
            ost.TensorView.of(freed)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
def test_a_fake_tensor_has_no_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(4))
    with pytest.raises(ost.InputError, match="FakeTensor has no memory"):
        ost.TensorView.of(fake)


def test_other_devices_are_refused_by_dlpack() -> None:
    class Elsewhere(Exported):
        def __dlpack_device__(self) -> Any:
            return (8, 0)

    with pytest.raises(ost.InputError, match=r"DLPack device \(8, 0\), which is neither the CPU nor a GPU"):
        ost.TensorView.of(Elsewhere(torch.ones(2)))


def test_torch_is_not_imported_for_other_arrays() -> None:
    source = (
        "import sys, numpy as np\n"
        "from ostinato import ops\n"
        "x = np.ones((2, 8), np.float32)\n"
        "ops.silu(x, out=np.empty_like(x))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", source], check=True)


def test_no_dtype_of_arrays_is_left_out() -> None:
    assert len(DTYPES) == sum(not dtype.is_block for dtype in DType)


def test_a_bound_tensor_whose_storage_was_given_back_is_refused(tiny: ost.TextExecutable) -> None:
    name, plan = next(iter(tiny.entries.items()))
    count = next(binding for binding in plan.inputs if binding.name == "token_count")
    tensor = torch.ones(count.type.static_shape, dtype=torch.int32)
    bound = tiny.bind(entry=name, inputs={"token_count": tensor})
    bound.run()
    tensor.untyped_storage().resize_(0)
    with pytest.raises(ost.AddressChanged, match="token_count: bound at 0x") as caught:
        bound.run()
    assert caught.value.kind == "freed"
    (finding,) = bound.audit().findings
    assert (finding.kind, finding.name) == ("freed", "token_count")
