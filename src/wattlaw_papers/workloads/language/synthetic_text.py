"""Synthetic text: words with the frequencies of real text, often followed by a certain word.

It is in memory, or in files in WikiText's layout.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from wattlaw_papers.workloads.data_sets import check_new_data
from wattlaw_papers.workloads.language import WORDS_OF_A_BLOCK, Options
from wattlaw_papers.workloads.language.masking import MaskedBlocks, Vocabulary, tokens_type

#: Zipf-Mandelbrot: the word of rank r has a share of 1 / (r + q)^s. The values are near English.
_EXPONENT, _SHIFT = 1.0, 2.7
#: The probability that a word is followed by its follower, which a model can learn.
_FOLLOWED = 0.5
_SEED = 0
_POOL_BLOCKS = 4096
_SPECIAL = 5  # [PAD], [UNK], [CLS], [SEP] and [MASK] are tokens 0 to 4, all others words by rank
# Of data sets in files.
_WORDS = 3000
_VOCABULARY = 2000
_SENTENCES, _SENTENCE_WORDS = 5, 16
_SYLLABLES = [
    first + vowel + last for first in "bdfklmnrst" for vowel in "aeiou" for last in ("", "n", "s")
]


class Language:
    """Words by rank (0 is the most frequent), each with another word that often follows it."""

    def __init__(self, words: int, seed: int) -> None:
        shares = (np.arange(1, words + 1) + _SHIFT) ** -_EXPONENT
        self._below = np.cumsum(shares / shares.sum())
        # Followers have the same distribution, so that they do not change frequencies.
        self._follower = self._drawn(np.random.default_rng((seed, words)), words)

    def text(self, rng: np.random.Generator, rows: int, length: int) -> npt.NDArray[np.int64]:
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


def make_data(folder: Path, size: int, seed: int) -> None:
    """Write invented text in WikiText's format, and a tokenizer for it.

    The files are ``text/wiki.train.tokens``, ``text/wiki.valid.tokens``, and
    ``tokenizer/tokenizer.json`` with at most 2,000 tokens. Words have Zipf's frequencies. The
    training text has at least ``size`` sequences of 512 tokens, the validation text a quarter.
    """
    from wattlaw_papers.workloads.language.tokenizer import train

    check_new_data(folder, size, 1)
    text, tokenizer = folder / "text", folder / "tokenizer"
    for part in (text, tokenizer):
        part.mkdir(parents=True, exist_ok=True)
    language, words = Language(_WORDS, seed), _words(seed)
    training = _lines(language, words, np.random.default_rng((seed, 1)), size)
    validation = _lines(language, words, np.random.default_rng((seed, 2)), max(1, size // 4))
    _write_text(text / "wiki.train.tokens", training)
    _write_text(text / "wiki.valid.tokens", validation)
    train(training, training, _VOCABULARY).save(str(tokenizer / "tokenizer.json"))


def _words(seed: int) -> list[str]:
    """Return invented words and WikiText's marks by rank; frequent words are shorter."""
    rng = np.random.default_rng((seed, 0))
    words = dict.fromkeys([",", "<unk>", "@-@", "@,@"])
    while len(words) < _WORDS:
        count = 1 + int(rng.integers(3)) * (len(words) > 50)
        words["".join(rng.choice(_SYLLABLES, count))] = None
    return list(words)


def _lines(language: Language, words: list[str], rng: np.random.Generator, size: int) -> list[str]:
    """Return paragraphs, and a blank line after each."""
    lines = []
    for _ in range(-(-size * WORDS_OF_A_BLOCK // (_SENTENCES * _SENTENCE_WORDS))):
        sentences = language.text(rng, _SENTENCES, _SENTENCE_WORDS)
        spelled = (" ".join(words[rank] for rank in ranks) for ranks in sentences)
        lines += [" " + " ".join(f"{each.capitalize()} ." for each in spelled) + " \n", " \n"]
    return lines


def _write_text(path: Path, lines: list[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
