"""Blocks of tokens, and which of them are hidden from the model.

As in Devlin et al. 2019 (arXiv 1810.04805), section 3.1, except that every sequence has the same
number of predicted tokens: so the mean over tokens is the mean over samples, however samples are
spread over ranks, and shapes never change.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wattlaw.workloads.batches import splitmix64
from wattlaw.workloads.workload import Indices, Seeds

#: Many tokens in a row: uint16 where the vocabulary allows it, else int32.
Tokens = npt.NDArray[np.integer[Any]]

_PREDICTED_SHARE = 0.15
#: Out of ten predicted tokens so many are masked, and one is replaced; the last stays as it is.
_MASKED_OF_TEN, _REPLACED_OF_TEN = 8, 1


@dataclass(frozen=True)
class Vocabulary:
    """The tokens with a meaning of their own, and all others."""

    cls: int
    sep: int
    mask: int
    ordinary: npt.NDArray[np.int64]  # what a replaced token is drawn from


def tokens_type(vocab_size: int) -> type[np.integer[Any]]:
    """Return the smallest type that holds so many tokens."""
    return np.uint16 if vocab_size <= 2**16 else np.int32


def predicted(sequence_length: int) -> int:
    """Return how many tokens of a sequence are predicted: 15 % of those between the marks."""
    return max(1, round(_PREDICTED_SHARE * (sequence_length - 2)))


class MaskedBlocks:
    """Sequences ``[CLS] tokens [SEP]`` cut from one run of tokens, without gaps or padding.

    Parameters
    ----------
    tokens
        All tokens in order, in memory or mapped from a file. What is left after the last whole
        block is dropped.
    sequence_length
        Tokens of a sequence, with its two marks.
    vocabulary
        Which tokens mean what.
    samples
        How many samples there are; by default as many as blocks. If more, blocks come again, and
        as a sample's mask is drawn from its own seed, with other masks.
    """

    reads_files = False  # a few hundred kB are copied per batch: no work for loader processes

    def __init__(
        self,
        tokens: Tokens,
        sequence_length: int,
        vocabulary: Vocabulary,
        samples: int | None = None,
    ) -> None:
        inner = sequence_length - 2
        count = len(tokens) // inner
        self._blocks = tokens[: count * inner].reshape(count, inner)
        self._vocabulary, self._predicted = vocabulary, predicted(sequence_length)
        self._samples = count if samples is None else samples

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Indices, seeds: Seeds) -> dict[str, torch.Tensor]:
        """Return ``input_ids`` (n, length), ``positions`` and ``labels`` (n, k), all int64.

        ``positions`` are those of the predicted tokens, in rising order, and ``labels`` what was
        there. The k positions, and what is done to each, are drawn from a sample's seed alone.
        """
        words, count = self._vocabulary, self._predicted
        blocks = np.asarray(self._blocks[indices % len(self._blocks)], dtype=np.int64)
        inner = blocks.shape[1]
        draws = splitmix64(seeds[:, None], np.arange(inner + 2 * count))
        positions = np.sort(np.argpartition(draws[:, :inner], count - 1, axis=1)[:, :count], axis=1)
        labels = np.take_along_axis(blocks, positions, axis=1)
        fate = draws[:, inner : inner + count] % np.uint64(10)
        other = words.ordinary[draws[:, inner + count :] % np.uint64(len(words.ordinary))]
        shown = np.where(fate < _MASKED_OF_TEN + _REPLACED_OF_TEN, other, labels)
        shown[fate < _MASKED_OF_TEN] = words.mask
        np.put_along_axis(blocks, positions, shown, axis=1)
        ids = np.empty((len(blocks), inner + 2), dtype=np.int64)
        ids[:, 0], ids[:, 1:-1], ids[:, -1] = words.cls, blocks, words.sep
        found = {"input_ids": ids, "positions": positions + 1, "labels": labels}
        return {name: torch.from_numpy(array) for name, array in found.items()}
