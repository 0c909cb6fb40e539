"""How many tokens a text has at the least, known without tokenising it: so that what can never fit is refused at once.

Each byte of a token t gets a weight of at most 1 / len(t); then the weights of one token's bytes add up to at most 1,
and those of a text to at most its tokens, however it is cut. The weight of a byte is 1 / (the length of the longest
token that has it), or 0 where no token is that byte alone, since such a byte may be dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import PreTokenizer, Sequence

from workers.detokenizer import byte_vocabulary

_SLACK = 1e-9  # rounding of a sum of two million weights is far below it, relatively


class TokenBound:
    """Of a tokenizer whose every token is a string of bytes of the text, none left out.

    weights: [256] float64, of each byte.
    """

    def __init__(self, weights: np.ndarray) -> None:
        self._weights = weights

    def fewest(self, text: str) -> int:
        """No tokenisation of `text` has fewer tokens; some milliseconds for a million characters."""
        counts = np.bincount(np.frombuffer(text.encode(), np.uint8), minlength=256)
        return math.ceil(float(counts @ self._weights) * (1 - _SLACK))


def token_bound(tokenizer: Any) -> TokenBound | None:
    """None for tokenizers that may drop, fuse or rewrite text: of those nothing is known beforehand."""
    if tokenizer not in _BOUNDS:
        _BOUNDS[tokenizer] = _bound_of(tokenizer)
    return _BOUNDS[tokenizer]


def _bound_of(tokenizer: Any) -> TokenBound | None:
    vocabulary, backend = byte_vocabulary(tokenizer), getattr(tokenizer, "backend_tokenizer", None)
    if vocabulary is None or backend is None or not _keeps_text(backend):
        return None
    longest = np.ones(256)
    # Special tokens are written in texts, too, by their names.
    names = [token.content.encode() for token in backend.get_added_tokens_decoder().values()]
    tokens = [vocabulary.bytes_of(i) for i in backend.get_vocab().values()]
    for data in (*names, *tokens):
        present = list(set(data))
        longest[present] = np.maximum(longest[present], len(data))
    alone = np.zeros(256)
    alone[[data[0] for data in tokens if len(data) == 1]] = 1
    return TokenBound(alone / longest)


def _keeps_text(backend: Tokenizer) -> bool:
    """No normalisation, nothing swallowed around added tokens, nothing cut off."""
    return (
        backend.normalizer is None
        and backend.truncation is None
        and isinstance(backend.decoder, decoders.ByteLevel)
        and isinstance(backend.model, models.BPE)
        and _only_cuts(backend.pre_tokenizer)
        and not any(t.lstrip or t.rstrip for t in backend.get_added_tokens_decoder().values())
    )


def _only_cuts(pre_tokenizer: PreTokenizer | None) -> bool:
    """Whether it splits text without dropping any; it maps bytes to characters one to one."""
    if isinstance(pre_tokenizer, Sequence):
        return all(map(_only_cuts, _parts(pre_tokenizer)))
    name, options = type(pre_tokenizer).__name__, str(pre_tokenizer)
    return name in ("ByteLevel", "Digits") or (name == "Split" and "Removed" not in options)


def _parts(sequence: Any) -> Iterator[PreTokenizer]:
    """It can be indexed, and neither iterated nor measured as typed."""
    for index in count():
        try:
            yield sequence[index]
        except IndexError:
            return


_BOUNDS: WeakKeyDictionary[Any, TokenBound | None] = WeakKeyDictionary()
