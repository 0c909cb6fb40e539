"""EAGLE's drafter: one decoder layer that continues the target's own features (EAGLE-3, Li et al. 2025, section 3).

At position t it is given the token at t + 1 and a feature of position t: of the target where the target has been, its
own output of the step before where it has not. It predicts the token at t + 2. Embeddings and LM head are the target's;
of the head only the rows of a truncated, frequency-ranked draft vocabulary are used. In EAGLE-3 the token reaches the
layer through its attention alone; where the shape is `joined` it is in the residual stream too, as in EAGLE (Li et al.
2024, section 3.1), so that a small drafter need not first learn to attend to the token it was just given.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class EagleShape:
    """hidden, heads, kv_heads, head_dim, intermediate: of the layer. features: target layers read, in order. own_rows:
    of an LM head of its own, 0 where it uses the target's. joined: whether the token is in the residual stream.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    features: tuple[int, ...]
    rope_theta: float
    rms_eps: float
    own_rows: int = 0
    joined: bool = False


@dataclass(slots=True)
class Keys:
    """Keys and values [batch, kv_heads, length, head_dim] of one pass over a text, rotated to their positions."""

    k: torch.Tensor
    v: torch.Tensor


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in fp32 whatever comes in, as the target's own."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(x.dtype)


class EagleModel(nn.Module):
    """The trained part: what reduces the target's features, the decoder layer, and the norm before the LM head."""

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        self.shape = s = shape
        self.reduce = nn.Linear(len(s.features) * s.hidden, s.hidden, bias=False)
        if s.joined:
            self.token = nn.Linear(s.hidden, s.hidden, bias=False)
        self.token_norm = RMSNorm(s.hidden, s.rms_eps)
        self.feature_norm = RMSNorm(s.hidden, s.rms_eps)
        self.q = nn.Linear(2 * s.hidden, s.heads * s.head_dim, bias=False)
        self.k = nn.Linear(2 * s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v = nn.Linear(2 * s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)
        self.mlp_norm = RMSNorm(s.hidden, s.rms_eps)
        self.gate = nn.Linear(s.hidden, s.intermediate, bias=False)
        self.up = nn.Linear(s.hidden, s.intermediate, bias=False)
        self.down = nn.Linear(s.intermediate, s.hidden, bias=False)
        self.norm = RMSNorm(s.hidden, s.rms_eps)
        if s.own_rows:
            self.head = nn.Linear(s.hidden, s.own_rows, bias=False)

    @torch.no_grad()
    def start_from(self, scale: torch.Tensor) -> None:
        """Begin untrained with every dimension of the target's features counting alike.

        scale: [layers, hidden], the size of each over a text (root mean square). A few dimensions are a hundred times
        larger than the rest; what is random would hear only these.
        """
        inputs = scale.numel()
        self.reduce.weight.copy_(torch.randn_like(self.reduce.weight) / inputs**0.5 / scale.flatten())

    def project(self, features: torch.Tensor) -> torch.Tensor:
        """[..., layers, hidden] of the target as the one feature [..., hidden] that the layer takes."""
        out: torch.Tensor = self.reduce(features.flatten(-2))
        return out

    def join(self, tokens: torch.Tensor, feature: torch.Tensor) -> torch.Tensor:
        """What enters the layer, [..., hidden]: the feature, and the token after it where the shape is `joined`."""
        return feature + self.token(self.token_norm(tokens)) if self.shape.joined else feature

    def attend(self, tokens: torch.Tensor, feature: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, Keys]:
        """Rotated queries [batch, heads, length, head_dim], and the keys and values, of that input.

        tokens: [batch, length, hidden], embeddings of the tokens after the features' positions. positions: [length].
        """
        x = torch.cat((self.token_norm(tokens), self.feature_norm(feature)), dim=-1)
        q, k, v = (
            project(x).unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        cos, sin = self._rotation(positions, x.dtype)
        return _rotate(q, cos, sin), Keys(_rotate(k, cos, sin), v)

    def finish(self, feature: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's output [batch, length, hidden]: the feature of the next step."""
        x: torch.Tensor = feature + self.o(attended.transpose(1, 2).flatten(-2))
        h = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))

    def logits(self, feature: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """[..., draft vocabulary]; head: [draft vocabulary, hidden], rows of the target's, where it has none."""
        return functional.linear(self.norm(feature), self.head.weight if self.shape.own_rows else head)

    def _rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        half = torch.arange(0, self.shape.head_dim, 2, device=positions.device, dtype=torch.float32)
        angles = positions[:, None].float() / self.shape.rope_theta ** (half / self.shape.head_dim)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def attend_unrolled(q: torch.Tensor, seen: list[Keys], mask: torch.Tensor) -> torch.Tensor:
    """Attention of unroll step s = len(seen) - 1 at every anchor at once: [batch, heads, length, head_dim].

    seen[0]: of the target's features, of which the anchor t sees positions up to t (mask [length, length], additive).
    seen[i], i >= 1: of the drafter's own feature i positions after the anchor; the anchor sees only its own. So one
    pass over a text trains every anchor's unrolled draft at once (training-time test, EAGLE-3 section 3.2).
    """
    groups = q.shape[1] // seen[0].k.shape[1]
    scale = q.shape[-1] ** -0.5
    k, v = (x.repeat_interleave(groups, dim=1) for x in (seen[0].k, seen[0].v))
    if len(seen) == 1:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    scores = [q @ k.transpose(-1, -2) * scale + mask]
    own = [(keys.k.repeat_interleave(groups, dim=1), keys.v.repeat_interleave(groups, dim=1)) for keys in seen[1:]]
    scores += [(q * own_k).sum(-1, keepdim=True) * scale for own_k, _ in own]
    weights = torch.cat(scores, dim=-1).softmax(dim=-1)
    length = k.shape[2]
    attended: torch.Tensor = weights[..., :length] @ v
    for i, (_, own_v) in enumerate(own):
        attended = attended + weights[..., length + i, None] * own_v
    return attended
