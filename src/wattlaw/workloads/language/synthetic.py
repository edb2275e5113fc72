"""Text without files: words as frequent as in real text, some of which tell the next."""

import numpy as np
import numpy.typing as npt

from wattlaw.workloads.language import Options
from wattlaw.workloads.language.masking import MaskedBlocks, Vocabulary, tokens_type

#: Zipf-Mandelbrot: the word of rank r has a share of 1 / (r + q)^s. Values chosen near English.
_EXPONENT, _SHIFT = 1.0, 2.7
#: So often a word is followed by the one word that belongs to it: what a model can learn.
_FOLLOWED = 0.5
_SEED = 0
_POOL_BLOCKS = 4096
_SPECIAL = 5  # [PAD], [UNK], [CLS], [SEP] and [MASK] are tokens 0 to 4, all others words by rank


class Language:
    """Words by rank (0 is the most frequent), and for each the one that often follows it."""

    def __init__(self, words: int, seed: int) -> None:
        shares = (np.arange(1, words + 1) + _SHIFT) ** -_EXPONENT
        self._below = np.cumsum(shares / shares.sum())
        # Followers are drawn by frequency too, and so leave frequencies as they are.
        self._follower = self._drawn(np.random.default_rng((seed, words)), words)

    def text(self, rng: np.random.Generator, rows: int, length: int) -> npt.NDArray[np.int64]:
        """Return rows of so many words each, by their ranks."""
        words = np.empty((rows, length), dtype=np.int64)
        words[:, 0] = self._drawn(rng, rows)
        for place in range(1, length):
            followed = rng.random(rows) < _FOLLOWED
            anew = self._drawn(rng, rows)
            words[:, place] = np.where(followed, self._follower[words[:, place - 1]], anew)
        return words

    def _drawn(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        found = np.searchsorted(self._below, rng.random(count), side="right")
        return np.minimum(found, len(self._below) - 1)


def synthetic_blocks(options: Options, *, training: bool) -> MaskedBlocks:
    """Return a pool of blocks that stands for all samples; training and evaluation differ."""
    samples = options.train_samples if training else options.evaluation_samples
    language = Language(options.vocab_size - _SPECIAL, _SEED)
    rng = np.random.default_rng((_SEED, int(training)))
    text = language.text(rng, min(samples, _POOL_BLOCKS), options.sequence_length - 2)
    tokens = (text + _SPECIAL).astype(tokens_type(options.vocab_size)).reshape(-1)
    vocabulary = Vocabulary(2, 3, 4, np.arange(_SPECIAL, options.vocab_size))
    return MaskedBlocks(tokens, options.sequence_length, vocabulary, samples)
