"""Blocks of tokens, of which some are masked.

As in Devlin et al. 2019 (arXiv 1810.04805), section 3.1, except that every sequence has the same
number of predicted tokens. The mean over tokens is therefore the mean over samples for any
distribution of samples over ranks, and shapes never change.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wattlaw.workloads.data_loading import splitmix64
from wattlaw.workloads.workload import Indices, Seeds

#: A sequence of tokens: uint16 if the vocabulary allows it, else int32.
Tokens = npt.NDArray[np.integer[Any]]

_PREDICTED_SHARE = 0.15
#: Of ten predicted tokens eight are masked, one is replaced and one is unchanged.
_MASKED_OF_TEN, _REPLACED_OF_TEN = 8, 1


@dataclass(frozen=True)
class Vocabulary:
    cls: int
    sep: int
    mask: int
    ordinary: npt.NDArray[np.int64]  # candidates for replaced tokens


def tokens_type(vocab_size: int) -> type[np.integer[Any]]:
    return np.uint16 if vocab_size <= 2**16 else np.int32


def predicted(sequence_length: int) -> int:
    """Return the number of predicted tokens of a sequence: 15 % of its text."""
    return max(1, round(_PREDICTED_SHARE * (sequence_length - 2)))


class MaskedBlocks:
    """Sequences ``[CLS] tokens [SEP]`` of successive tokens, without gaps or padding; an incomplete
    last block is dropped. With more ``samples`` than blocks, blocks are repeated with different
    masks, as each sample's mask is drawn from its own seed."""

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
        """Return ``input_ids`` (n, length), ``positions`` of the predicted tokens in increasing
        order and ``labels``, their original tokens, (n, k), all int64; drawn from the sample's
        seed."""
        vocabulary, count = self._vocabulary, self._predicted
        blocks = np.asarray(self._blocks[indices % len(self._blocks)], dtype=np.int64)
        inner = blocks.shape[1]
        draws = splitmix64(seeds[:, None], np.arange(inner + 2 * count))
        positions = np.sort(np.argpartition(draws[:, :inner], count - 1, axis=1)[:, :count], axis=1)
        labels = np.take_along_axis(blocks, positions, axis=1)
        action = draws[:, inner : inner + count] % np.uint64(10)
        ordinary = vocabulary.ordinary
        replaced = ordinary[draws[:, inner + count :] % np.uint64(len(ordinary))]
        inputs = np.where(action < _MASKED_OF_TEN + _REPLACED_OF_TEN, replaced, labels)
        inputs[action < _MASKED_OF_TEN] = vocabulary.mask
        np.put_along_axis(blocks, positions, inputs, axis=1)
        ids = np.empty((len(blocks), inner + 2), dtype=np.int64)
        ids[:, 0], ids[:, 1:-1], ids[:, -1] = vocabulary.cls, blocks, vocabulary.sep
        arrays = {"input_ids": ids, "positions": positions + 1, "labels": labels}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
