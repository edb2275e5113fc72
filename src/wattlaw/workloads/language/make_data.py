"""Writes small synthetic data sets in WikiText's layout."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wattlaw.workloads.language import WORDS_OF_A_BLOCK
from wattlaw.workloads.language.synthetic import Language
from wattlaw.workloads.language.tokenizer import train
from wattlaw.workloads.workload import check_new_data

_WORDS = 3000
_VOCABULARY = 2000
_SECTIONS, _PARAGRAPHS, _SENTENCES, _SENTENCE_WORDS = 2, 2, 5, 16
_ARTICLE_WORDS = _SECTIONS * _PARAGRAPHS * _SENTENCES * _SENTENCE_WORDS
_SYLLABLES = [
    first + vowel + last for first in "bdfklmnrst" for vowel in "aeiou" for last in ("", "n", "s")
]


def make_data(folder: Path, size: int, seed: int) -> None:
    """Write invented text in WikiText's formats, and a tokenizer for it.

    The files are ``text/wiki.train.tokens`` and ``text/wiki.valid.tokens``; the same lines in
    ``parquet/`` as two shards for training and one for validation; ``tokenizer/tokenizer.json``
    and ``tokenizer/vocab.txt`` with at most 2,000 tokens. Words have Zipf's frequencies. The
    training text has at least ``size`` sequences of 128 tokens, the validation text a quarter.

    Raises ``BadInput`` if the folder is not empty, or ``size`` is too small.
    """
    check_new_data(folder, size, 1)
    parts = [folder / name for name in ("text", "parquet", "tokenizer")]
    for part in parts:
        part.mkdir(parents=True, exist_ok=True)
    text, parquet, tokenizer = parts
    language, words = Language(_WORDS, seed), _words(seed)
    training = _lines(language, words, np.random.default_rng((seed, 1)), size)
    validation = _lines(language, words, np.random.default_rng((seed, 2)), max(1, size // 4))
    _write_text(text / "wiki.train.tokens", training)
    _write_text(text / "wiki.valid.tokens", validation)
    half = len(training) // 2
    _write_parquet(parquet / "train-00000-of-00002.parquet", training[:half])
    _write_parquet(parquet / "train-00001-of-00002.parquet", training[half:])
    _write_parquet(parquet / "validation-00000-of-00001.parquet", validation)
    trained = train(training, training, _VOCABULARY)
    trained.save(str(tokenizer / "tokenizer.json"))
    tokens: dict[str, int] = trained.get_vocab()
    _write_text(
        tokenizer / "vocab.txt", [f"{token}\n" for token in sorted(tokens, key=tokens.__getitem__)]
    )


def _words(seed: int) -> list[str]:
    """Return invented words and WikiText's marks by rank; frequent words are shorter."""
    rng = np.random.default_rng((seed, 0))
    words = dict.fromkeys([",", "<unk>", "@-@", "@,@"])
    while len(words) < _WORDS:
        count = 1 + int(rng.integers(3)) * (len(words) > 50)
        words["".join(rng.choice(_SYLLABLES, count))] = None
    return list(words)


def _lines(language: Language, words: list[str], rng: np.random.Generator, size: int) -> list[str]:
    """Return articles with at least the words of ``size`` sequences."""
    count = -(-size * WORDS_OF_A_BLOCK // _ARTICLE_WORDS)
    return list(chain.from_iterable(_article(language, words, rng) for _ in range(count)))


def _article(language: Language, words: list[str], rng: np.random.Generator) -> Iterator[str]:
    def title() -> str:
        return " ".join(words[rank] for rank in rng.integers(4, len(words), 2))

    yield " \n"
    yield f" = {title().title()} = \n"
    yield " \n"
    for section in range(_SECTIONS):
        if section:
            yield f" = = {title().title()} = = \n"
            yield " \n"
        for _ in range(_PARAGRAPHS):
            sentences = language.text(rng, _SENTENCES, _SENTENCE_WORDS)
            spelled = (" ".join(words[rank] for rank in ranks) for ranks in sentences)
            yield " " + " ".join(f"{sentence.capitalize()} ." for sentence in spelled) + " \n"
            yield " \n"


def _write_text(path: Path, lines: list[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


def _write_parquet(path: Path, lines: list[str]) -> None:
    """Write lines as rows; as in the published files, a blank line is an empty row."""
    rows = [line if line.strip() else "" for line in lines]
    pq.write_table(pa.table({"text": pa.array(rows, pa.string())}), path)
