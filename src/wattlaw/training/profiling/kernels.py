"""Which kernels a GPU would launch for what PyTorch computes, and what each of them moves."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from wattlaw.training.flops import TRANSFORMS

_aten = torch.ops.aten

#: They take memory or give a number to the host; no kernel runs. Views are told by their schemas.
_NONE = {
    _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided,
    _aten._unsafe_view, _aten.lift_fresh, _aten._local_scalar_dense,
}  # fmt: skip
#: What of an operation's inputs is looked at for its shape only, or written over.
_UNREAD = {
    _aten.zeros_like: "self", _aten.ones_like: "self", _aten.full_like: "self",
    _aten.new_zeros: "self", _aten.new_ones: "self", _aten.new_full: "self",
    _aten.copy_: "self", _aten.fill_: "self", _aten.zero_: "self", _aten.bernoulli_: "self",
    _aten.normal_: "self", _aten.uniform_: "self", _aten.nll_loss_backward: "self",
    _aten.max_pool2d_with_indices_backward: "self", _aten.avg_pool2d_backward: "self",
}  # fmt: skip
#: Of their first input they read as many elements as they put out.
_PICKING = {
    _aten.embedding, _aten.index_select, _aten.gather, _aten.index, _aten.nll_loss_forward,
}  # fmt: skip
#: Kernels of operations that need several: zeros and then a copy; a copy and then a sum; gradients
#: of the input and of the weights; sorted indices (of about eight kernels) before they are summed.
_SEVERAL = {
    _aten.select_backward: 2, _aten.slice_backward: 2, _aten.embedding_dense_backward: 2,
    _aten.index_add: 2, _aten.scatter_add: 2, _aten.native_layer_norm_backward: 2,
    _aten.index_put: 8,
}  # fmt: skip
#: What one launch of a multi-tensor kernel takes: so many tensors by the number of lists that it
#: works on, and chunks (PyTorch, aten/src/ATen/native/cuda/MultiTensorApply.cuh).
_TENSORS_OF_A_LAUNCH = (110, 64, 48, 36, 30)
_CHUNKS_OF_A_LAUNCH, _CHUNK = 320, 65_536


@dataclass(frozen=True)
class Kernel:
    """One kernel: its operations (as ``training.flops`` counts them), the bytes it moves."""

    name: str
    flops: float
    moved_bytes: float


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the kernels of what is computed on one device while it is active.

    A kernel reads its inputs and writes its outputs once; of an expanded tensor only what is
    stored. A number takes 4 bytes if it is a float of any width (8 if complex), else its own size.
    Work on tensors of other devices is the host's and not recorded.

    Parameters
    ----------
    device
        Where the model is; ``meta`` computes shapes only.
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
        if func.namespace != "aten" or packet in _NONE:
            return False
        views = [one.alias_info is not None and not one.alias_info.is_write for one in returns]
        tensors = _tensors(values)
        return (
            not (views and all(views))
            and any(one.device == self._device for one in tensors)
            and any(one.numel() for one in tensors)
        )

    def _kernels(self, func: Any, args: Any, kwargs: Any, out: Any) -> Iterable[Kernel]:
        packet = func.overloadpacket
        if packet == _aten.convolution_backward:
            return self._of_convolution_backward(func, args, out)
        whole = self._operations(packet, args, kwargs, out)
        moved = _moved_bytes(func, args, kwargs, out)
        name = packet.__name__
        if packet == _aten.convolution and args[2] is not None:  # cuDNN, then the bias is added
            bias = 2 * _bytes(out) + _bytes(args[2])
            without = moved - _bytes(args[2])
            return [Kernel(name, whole, without), Kernel("add_", 0.0, bias)]
        count = _SEVERAL.get(packet, 1)
        if packet in TRANSFORMS:  # one pass for each dimension
            count, moved = len(args[1]), moved * len(args[1])
        elif name.startswith("_foreach_"):
            count = _launches(args, out)
        return [Kernel(name, whole / count, moved / count)] * count

    def _of_convolution_backward(self, func: Any, args: Any, out: Any) -> Iterator[Kernel]:
        """Yield one kernel for each gradient that is asked for."""
        packet, (grad_out, images, weight) = func.overloadpacket, args[:3]
        sources = ((grad_out, weight), (grad_out, images), (grad_out,))
        for number, wanted in enumerate(args[10]):
            if wanted:
                mask = [place == number for place in range(3)]
                flops = self._operations(packet, (*args[:10], mask), {}, out)
                moved = sum(map(_bytes, sources[number])) + _bytes(out[number])
                yield Kernel(packet.__name__, flops, moved)

    def _operations(self, packet: Any, args: Any, kwargs: Any, out: Any) -> float:
        if packet == _aten._scaled_dot_product_efficient_attention_backward:
            # Each product of the forward pass has two gradients. What a fused kernel computes
            # again, torch's formula counts too; here operations are those of training.flops.
            query, key, value = (one.shape for one in args[1:4])
            return float(2 * sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]
        formula = self._flops.get(packet)
        return float(formula(*args, **kwargs, out_val=out)) if formula is not None else 0.0


class AsOnGpu(TorchFunctionMode):
    """Computes attention and dropout by the fused operations that PyTorch takes on a GPU.

    On ``meta`` and CPU it would take several plain ones instead; the fused ones know shapes on
    ``meta`` and numbers on GPUs only.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is functional.dropout:
            return _dropout(*args, **kwargs)
        return func(*args, **kwargs)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
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


def _dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    if not training or not 0 < p < 1:
        return functional.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(values) if isinstance(one, torch.Tensor)]


def _bytes(value: Any) -> float:
    """Return the bytes of all tensors in a value: what is stored, not what it is expanded to."""
    return float(sum(_elements(one) * _width(one.dtype) for one in _tensors(value)))


def _elements(tensor: torch.Tensor) -> int:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(1 if size > 1 and not stride else size for size, stride in pairs)


def _width(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 8
    return 4 if dtype.is_floating_point else dtype.itemsize


def _moved_bytes(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the bytes of all inputs and outputs of an operation."""
    packet = func.overloadpacket
    most = _bytes(out) if packet in _PICKING else math.inf
    total = 0.0
    for number, argument in enumerate(func._schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        size = _bytes(value)
        if _UNREAD.get(packet) != argument.name:
            total += min(size, most) if number == 0 else size
        if argument.alias_info is not None and argument.alias_info.is_write:
            total += size
    results = out if isinstance(out, tuple) and len(func._schema.returns) > 1 else (out,)
    for described, result in zip(func._schema.returns, results, strict=False):
        if described.alias_info is None:
            total += _bytes(result)
    return total


def _launches(args: Any, out: Any) -> int:
    """Return how many launches a multi-tensor operation takes; it cuts long lists."""
    lists = [one for one in (*args, out) if isinstance(one, list | tuple) and _tensors(one)]
    tensors = _TENSORS_OF_A_LAUNCH[min(len(lists), len(_TENSORS_OF_A_LAUNCH)) - 1]
    chunks = sum(-(-one.numel() // _CHUNK) for one in _tensors(lists[0]))
    return max(-(-len(lists[0]) // tensors), -(-chunks // _CHUNKS_OF_A_LAUNCH))
