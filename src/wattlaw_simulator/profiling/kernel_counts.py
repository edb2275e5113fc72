"""The kernels that a GPU would launch for PyTorch's operations, with the bytes that each moves."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from wattlaw.running.training.flops import TRANSFORMS

_aten = torch.ops.aten

#: Operations without a kernel: they allocate memory or copy a number to the host. Views are
#: recognised by their schemas.
_WITHOUT_KERNEL = {
    _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided,
    _aten._unsafe_view, _aten.lift_fresh, _aten._local_scalar_dense,
}  # fmt: skip
#: The input of an operation whose values are not read: only its shape, or it is overwritten.
_UNREAD_INPUT = {
    _aten.zeros_like: "self", _aten.ones_like: "self", _aten.full_like: "self",
    _aten.new_zeros: "self", _aten.new_ones: "self", _aten.new_full: "self",
    _aten.copy_: "self", _aten.fill_: "self", _aten.zero_: "self", _aten.bernoulli_: "self",
    _aten.normal_: "self", _aten.uniform_: "self", _aten.nll_loss_backward: "self",
    _aten.max_pool2d_with_indices_backward: "self", _aten.avg_pool2d_backward: "self",
}  # fmt: skip
#: Operations that read as many elements of their first input as they write.
_GATHERS = {_aten.embedding, _aten.index_select, _aten.gather, _aten.index, _aten.nll_loss_forward}
#: Operations with several kernels: zeros and a copy; a copy and a sum; gradients of the input and
#: of the weights; about eight kernels that sort indices, and a sum.
_KERNELS_OF_OPERATION = {
    _aten.select_backward: 2, _aten.slice_backward: 2, _aten.embedding_dense_backward: 2,
    _aten.index_add: 2, _aten.scatter_add: 2, _aten.native_layer_norm_backward: 2,
    _aten.index_put: 8,
}  # fmt: skip
#: The most tensors of one launch of a multi-tensor kernel, by the number of its lists, and the most
#: chunks (PyTorch, aten/src/ATen/native/cuda/MultiTensorApply.cuh).
_TENSORS_OF_A_LAUNCH = (110, 64, 48, 36, 30)
_CHUNKS_OF_A_LAUNCH, _CHUNK = 320, 65_536


@dataclass(frozen=True)
class Kernel:
    """One kernel: its operations (as in ``training.flops``) and the bytes that it moves."""

    name: str
    flops: float
    moved_bytes: float


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the kernels of one device (``meta`` computes shapes only) while it is active.

    A kernel reads its inputs and writes its outputs once; of an expanded tensor only the stored
    elements count. A float of any width takes 4 bytes (8 if complex), other types their own size.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: list[Kernel] = []
        self._device = device
        self._flops = FlopCounterMode(display=False, custom_mapping=TRANSFORMS).flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self._is_kernel(func, (args, kwargs, out)):
            self.kernels += self._kernels(func, args, kwargs, out)
        return out

    def _is_kernel(self, func: Any, values: Any) -> bool:
        packet, returns = func.overloadpacket, func._schema.returns
        if func.namespace != "aten" or packet in _WITHOUT_KERNEL:
            return False
        is_view = [out.alias_info is not None and not out.alias_info.is_write for out in returns]
        tensors = _tensors(values)
        return (
            not (is_view and all(is_view))
            and any(tensor.device == self._device for tensor in tensors)
            and any(tensor.numel() for tensor in tensors)
        )

    def _kernels(self, func: Any, args: Any, kwargs: Any, out: Any) -> Iterable[Kernel]:
        packet = func.overloadpacket
        if packet == _aten.convolution_backward:
            return self._of_convolution_backward(func, args, out)
        flops = self._operations(packet, args, kwargs, out)
        moved = _moved_bytes(func, args, kwargs, out)
        name = packet.__name__
        if packet == _aten.convolution and args[2] is not None:  # cuDNN, then the bias is added
            bias = 2 * _bytes(out) + _bytes(args[2])
            return [Kernel(name, flops, moved - _bytes(args[2])), Kernel("add_", 0.0, bias)]
        count = _KERNELS_OF_OPERATION.get(packet, 1)
        if packet in TRANSFORMS:  # one pass for each dimension
            count, moved = len(args[1]), moved * len(args[1])
        elif name.startswith("_foreach_"):
            count = _launches(args, out)
        return [Kernel(name, flops / count, moved / count)] * count

    def _of_convolution_backward(self, func: Any, args: Any, out: Any) -> Iterator[Kernel]:
        packet, (grad_out, images, weight) = func.overloadpacket, args[:3]
        sources = ((grad_out, weight), (grad_out, images), (grad_out,))
        for number, is_computed in enumerate(args[10]):
            if is_computed:
                mask = [index == number for index in range(3)]
                flops = self._operations(packet, (*args[:10], mask), {}, out)
                moved = sum(map(_bytes, sources[number])) + _bytes(out[number])
                yield Kernel(packet.__name__, flops, moved)

    def _operations(self, packet: Any, args: Any, kwargs: Any, out: Any) -> float:
        if packet == _aten._scaled_dot_product_efficient_attention_backward:
            # Each product of the forward pass has two gradients. torch's formula also counts what
            # a fused kernel recomputes; training.flops does not.
            query, key, value = (tensor.shape for tensor in args[1:4])
            return float(2 * sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]
        formula = self._flops.get(packet)
        return float(formula(*args, **kwargs, out_val=out)) if formula is not None else 0.0


class AsOnGpu(TorchFunctionMode):
    """Computes attention and dropout with the fused operations of GPUs, which compute shapes on
    ``meta``, where PyTorch would use several simple ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is functional.dropout:
            return _dropout(*args, **kwargs)
        return func(*args, **kwargs)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **others: Any,
) -> Any:
    if others.get("enable_gqa") or query.device.type != "meta" or query.dim() != 4:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, **others
        )
    fused = _aten._scaled_dot_product_efficient_attention
    scale = others.get("scale")
    return fused(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or not 0 < p < 1:
        return functional.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _bytes(value: Any) -> float:
    """Return the stored bytes of all tensors in a value; expanded elements do not count."""
    total = 0
    for tensor in _tensors(value):
        pairs, dtype = zip(tensor.shape, tensor.stride(), strict=True), tensor.dtype
        width = 8 if dtype.is_complex else 4 if dtype.is_floating_point else dtype.itemsize
        total += width * math.prod(1 if n > 1 and not stride else n for n, stride in pairs)
    return float(total)


def _moved_bytes(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    packet = func.overloadpacket
    most = _bytes(out) if packet in _GATHERS else math.inf
    total = 0.0
    for number, argument in enumerate(func._schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        size = _bytes(value)
        if _UNREAD_INPUT.get(packet) != argument.name:
            total += min(size, most) if number == 0 else size
        if argument.alias_info is not None and argument.alias_info.is_write:
            total += size
    results = out if isinstance(out, tuple) and len(func._schema.returns) > 1 else (out,)
    for described, result in zip(func._schema.returns, results, strict=False):
        if described.alias_info is None:
            total += _bytes(result)
    return total


def _launches(args: Any, out: Any) -> int:
    """Return the number of launches of a multi-tensor operation, which splits long lists."""
    lists = [value for value in (*args, out) if isinstance(value, list | tuple) and _tensors(value)]
    tensors = _TENSORS_OF_A_LAUNCH[min(len(lists), len(_TENSORS_OF_A_LAUNCH)) - 1]
    chunks = sum(-(-tensor.numel() // _CHUNK) for tensor in _tensors(lists[0]))
    return max(-(-len(lists[0]) // tensors), -(-chunks // _CHUNKS_OF_A_LAUNCH))
