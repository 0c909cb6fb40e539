"""The limits of each sequence, one number of each kind."""

from __future__ import annotations

from dataclasses import dataclass

import torch

TOP_K_OFF, TOP_P_OFF, MIN_P_OFF = 0, 1.0, 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Filters of B sequences. top_k: [B] i32, 0 is off. top_p: [B] f32 in [0, 1], 1 is off.

    min_p: [B] f32 in [0, 1], 0 is off. A greedy sequence has no use for them: its largest token always stays.
    """

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    @property
    def log_min_p(self) -> torch.Tensor:
        """[B] f32: how far below the largest score min-p ends; -inf is off."""
        return self.min_p.log()


def limits_of(
    top_k: torch.Tensor | None, top_p: torch.Tensor | None, min_p: torch.Tensor | None, like: torch.Tensor
) -> Limits | None:
    """Limits for the B sequences whose temperatures are `like` [B]; None if no filter is given at all.

    Raises ValueError that names the argument. Values of device tensors are not read: that would stall the stream.
    """
    if top_k is None and top_p is None and min_p is None:
        return None
    given = (("top_k", top_k, torch.int32), ("top_p", top_p, torch.float32), ("min_p", min_p, torch.float32))
    for name, value, wanted in given:
        if value is None:
            continue
        if value.dtype != wanted or value.shape != like.shape:
            raise ValueError(
                f"{name} is {value.dtype} {tuple(value.shape)}; {len(like)} temperatures need {wanted} ({len(like)},)"
            )
        if value.device != like.device:
            raise ValueError(f"{name} is on {value.device}, not on {like.device}; move one")
        if value.device.type == "cpu":
            _check_values(name, value)
    batch, device = len(like), like.device
    # Contiguous, since kernels step through them one by one.
    return Limits(
        top_k.contiguous() if top_k is not None else torch.full((batch,), TOP_K_OFF, dtype=torch.int32, device=device),
        top_p.contiguous()
        if top_p is not None
        else torch.full((batch,), TOP_P_OFF, dtype=torch.float32, device=device),
        min_p.contiguous()
        if min_p is not None
        else torch.full((batch,), MIN_P_OFF, dtype=torch.float32, device=device),
    )


def _check_values(name: str, value: torch.Tensor) -> None:
    if name == "top_k":
        if bool((value < 0).any()):
            raise ValueError(f"top_k is {value.tolist()}; each must be at least 0, and 0 is off")
    elif not bool(((value >= 0) & (value <= 1)).all()):
        off = "1" if name == "top_p" else "0"
        raise ValueError(f"{name} is {value.tolist()}; each must lie in [0, 1], and {off} is off")
