"""Synthetic text: words with the frequencies of real text, often followed by a certain word."""

import numpy as np
import numpy.typing as npt

from wattlaw.workloads.language import Options
from wattlaw.workloads.language.masking import MaskedBlocks, Vocabulary, tokens_type

#: Zipf-Mandelbrot: the word of rank r has a share of 1 / (r + q)^s. The values are near English.
_EXPONENT, _SHIFT = 1.0, 2.7
#: The probability that a word is followed by its follower, which a model can learn.
_FOLLOWED = 0.5
_SEED = 0
_POOL_BLOCKS = 4096
_SPECIAL = 5  # [PAD], [UNK], [CLS], [SEP] and [MASK] are tokens 0 to 4, all others words by rank


class Language:
    """Words by rank (0 is the most frequent), each with another word that often follows it."""

    def __init__(self, words: int, seed: int) -> None:
        shares = (np.arange(1, words + 1) + _SHIFT) ** -_EXPONENT
        self._below = np.cumsum(shares / shares.sum())
        # Followers have the same distribution, so that they do not change frequencies.
        self._follower = self._drawn(np.random.default_rng((seed, words)), words)

    def text(self, rng: np.random.Generator, rows: int, length: int) -> npt.NDArray[np.int64]:
        """Return the ranks of random words, shape (rows, length)."""
        words = np.empty((rows, length), dtype=np.int64)
        words[:, 0] = self._drawn(rng, rows)
        for column in range(1, length):
            is_followed = rng.random(rows) < _FOLLOWED
            drawn = self._drawn(rng, rows)
            words[:, column] = np.where(is_followed, self._follower[words[:, column - 1]], drawn)
        return words

    def _drawn(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        ranks = np.searchsorted(self._below, rng.random(count), side="right")
        return np.minimum(ranks, len(self._below) - 1)


def synthetic_blocks(options: Options, *, training: bool) -> MaskedBlocks:
    """Return a pool of blocks that is repeated; training and evaluation have different ones."""
    samples = options.train_samples if training else options.evaluation_samples
    language = Language(options.vocab_size - _SPECIAL, _SEED)
    rng = np.random.default_rng((_SEED, int(training)))
    text = language.text(rng, min(samples, _POOL_BLOCKS), options.sequence_length - 2)
    tokens = (text + _SPECIAL).astype(tokens_type(options.vocab_size)).reshape(-1)
    vocabulary = Vocabulary(2, 3, 4, np.arange(_SPECIAL, options.vocab_size))
    return MaskedBlocks(tokens, options.sequence_length, vocabulary, samples)
