"""Sizes that the sampling kernels are built for: few, so that each of them can be compiled and tested."""

from __future__ import annotations

import torch

from kernels.launch import MAX_VOCAB_BLOCK

BLOCK = MAX_VOCAB_BLOCK
"""Tokens that one program reads, whatever the vocabulary."""
BLOCKS = 256
"""Blocks of a row that one program merges."""
BATCH_BLOCK = 256
"""Sequences that a program compares with its row at once."""
MAX_VOCAB = BLOCK * BLOCKS
TYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
