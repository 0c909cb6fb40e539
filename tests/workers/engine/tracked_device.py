"""A device that is none: its tensors say that they are elsewhere; what crosses between them and the host is noted.

They lie on the CPU, but say that they are on `DEVICE`, so that PyTorch moves, reads and indexes them as it would a
GPU's. Where a GPU would have the host wait, that is in `Traffic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
_READS = ("item", "_local_scalar_dense", "equal", "is_nonzero", "allclose")
_SIZED_BY_VALUES = ("nonzero", "masked_select", "unique", "repeat_interleave", "bincount")


class Tracked(torch.Tensor):
    """A CPU tensor that says it is on DEVICE."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, real: torch.Tensor) -> Tracked:
        with torch.inference_mode():
            wrapper: Any = torch.Tensor._make_wrapper_subclass(
                cls, real.shape, strides=real.stride(), storage_offset=real.storage_offset(), dtype=real.dtype,
                device=DEVICE,
            )  # fmt: skip
        wrapper.held = real
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a tracked tensor outside of `tracking`")


def real_of(value: Any) -> Any:
    """What there is on the CPU of a tensor, or of a device."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value == DEVICE else value
    return value.held if isinstance(value, Tracked) else value


def tracked(value: Any) -> Any:
    """The same on DEVICE, tensors in tuples and dataclasses too."""
    if isinstance(value, Tracked) or not isinstance(value, torch.Tensor):
        return value
    return Tracked(value)


class Traffic:
    """waits: what made the host wait, by the operation; copies: to the device, for which it does not."""

    def __init__(self) -> None:
        self.waits: list[str] = []
        self.copies = 0


class _Operations(TorchDispatchMode):
    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self.traffic = traffic

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        is_there = any(isinstance(leaf, Tracked) for leaf in tree_leaves((args, kwargs)))
        asked = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)), None)
        goes_there = is_there if asked is None else asked == DEVICE
        is_quiet = bool(kwargs.get("non_blocking") or (name == "copy_" and args[2:3] == (True,)))
        if name in ("to", "_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            goes_there = isinstance(args[0], Tracked) if name == "copy_" else goes_there
            self._note_copy(isinstance(source, Tracked), goes_there, is_quiet)
        elif is_there and (name in _READS or name in _SIZED_BY_VALUES):
            self.traffic.waits.append(name)
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_") and isinstance(args[0], Tracked):
            for i in (i for i in args[1] if i is not None):
                if not isinstance(i, Tracked):
                    self.traffic.waits.append(f"{name} by numbers on the host")
                elif i.dtype in (torch.bool, torch.uint8):
                    self.traffic.waits.append(f"{name} by a mask")
        elif is_there:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, torch.Tensor) and not isinstance(leaf, Tracked) and leaf.ndim:
                    raise RuntimeError(f"{func}: tensors on two devices")
        found = func(*tree_map(real_of, args), **tree_map(real_of, kwargs))
        return tree_map(tracked, found) if goes_there else found

    def _note_copy(self, is_there: bool, goes_there: bool, is_quiet: bool) -> None:
        if is_there and not goes_there:
            self.traffic.waits.append("copied to the host")
        elif goes_there and not is_there:
            if is_quiet:
                self.traffic.copies += 1
            else:
                self.traffic.waits.append("copied to the device")


class _Functions(TorchFunctionMode):
    """What reaches no operator: torch.tensor(..., device=), whose values are copied and waited for, and tolist."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self.traffic = traffic

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func is torch.tensor and device is not None and torch.device(device) == DEVICE:
            self.traffic.waits.append("torch.tensor on the device")
            return Tracked(func(*args, **{**kwargs, "device": "cpu"}))
        if func in (torch.Tensor.tolist, torch.Tensor.numpy) and isinstance(args[0], Tracked):
            self.traffic.waits.append(func.__name__)
            return func(args[0].held)
        return func(*args, **kwargs)


@contextmanager
def tracking() -> Iterator[Traffic]:
    traffic = Traffic()
    # All of it, since PyTorch lets no view of another tensor be made there.
    with torch.inference_mode(), _Functions(traffic), _Operations(traffic):
        yield traffic


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel as it is on a device: it reads and writes there, and nobody waits for it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(leaf, Tracked) for leaf in tree_leaves((args, kwargs))):
            return function(*args, **kwargs)
        with torch.utils._python_dispatch._disable_current_modes():
            found = function(*tree_map(real_of, args), **tree_map(real_of, kwargs))
            if hasattr(found, "__dataclass_fields__"):
                return type(found)(*(tracked(getattr(found, name)) for name in found.__dataclass_fields__))
            return tree_map(tracked, found)

    return call


def move(module: torch.nn.Module) -> None:
    """Its weights and buffers, in place."""
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = tracked(tensor.detach())


def moved(tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [tracked(tensor) for tensor in tensors]
