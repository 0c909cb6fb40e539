"""Which tokens a sequence has said, and how often: what penalties go by. Counted once a token, not once a step."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch

from kernels.sample.adjustments import FREQUENCY_OFF, PRESENCE_OFF, REPETITION_OFF, penalised
from workers.sequence import SamplingParams
from workers.upload import upload

NOT_SEEN = -1


def has_penalties(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != REPETITION_OFF
        or sampling.presence_penalty != PRESENCE_OFF
        or sampling.frequency_penalty != FREQUENCY_OFF
    )


class TokenTally:
    """The distinct tokens of a growing text, and the occurrences of each in its output.

    prompt: tokens that count as seen and not as output; only a repetition penalty looks at them.
    """

    def __init__(self, prompt: Seq[int], repetition_penalty: float) -> None:
        distinct = list(dict.fromkeys(prompt)) if repetition_penalty != REPETITION_OFF else []
        self._seats = {token: seat for seat, token in enumerate(distinct)}
        self._token_ids = np.array(distinct, dtype=np.int64)
        self._occurrences = np.zeros(len(distinct), dtype=np.int32)
        self._counted = len(prompt)

    def catch_up(self, token_ids: Seq[int]) -> None:
        """Count what the text, prompt and output, has more than at the last call."""
        for i in range(self._counted, len(token_ids)):
            seat = self._seats.setdefault(token_ids[i], len(self._seats))
            if seat >= len(self._token_ids):
                room = max(64, len(self._token_ids))
                self._token_ids = np.concatenate((self._token_ids, np.zeros(room, np.int64)))
                self._occurrences = np.concatenate((self._occurrences, np.zeros(room, np.int32)))
            self._token_ids[seat] = token_ids[i]
            self._occurrences[seat] += 1
        self._counted = max(self._counted, len(token_ids))

    def along(self, drafts: Seq[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids [n] i64, and their occurrences [len(drafts) + 1, n] i32 in the output and the drafts before a row.

        NOT_SEEN: a token that is drafted only later on.
        """
        n = len(self._seats)
        new = [token for token in dict.fromkeys(drafts) if token not in self._seats]
        seats = {token: n + i for i, token in enumerate(new)}
        occurrences = np.empty((len(drafts) + 1, n + len(new)), np.int32)
        occurrences[:, :n] = self._occurrences[:n]
        occurrences[:, n:] = NOT_SEEN
        for j, token in enumerate(drafts):
            later = occurrences[j + 1 :, self._seats.get(token, seats.get(token))]
            np.maximum(later, 0, out=later)
            later += 1
        token_ids = np.concatenate((self._token_ids[:n], np.array(new, np.int64)))
        return torch.from_numpy(token_ids), torch.from_numpy(occurrences)


def penalise(logits: torch.Tensor, sampling: SamplingParams, tally: TokenTally, drafts: Seq[int]) -> None:
    """Change logits [n, vocab] f32 in place: those of the last n of the len(drafts) + 1 rows along the drafts.

    Row j counts the drafts before it, as plain decoding of the same tokens would have.
    """
    token_ids, occurrences = upload(tally.along(drafts), logits.device)
    occurrences = occurrences[-len(logits) :]
    repetition, presence, frequency = (
        torch.tensor(value, dtype=torch.float32)
        for value in (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    )
    before = logits[:, token_ids]
    after = penalised(before, occurrences, repetition, presence, frequency)
    logits[:, token_ids] = torch.where(occurrences == NOT_SEEN, before, after)
