"""Tokenizers from a local folder, or trained on the text."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from wattlaw.common.errors import BadInput
from wattlaw_papers.workloads.language.masking import Tokens, Vocabulary, tokens_type

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
#: WikiText's mark of a rare word, and the token for it.
_RARE, _UNKNOWN = "<unk>", "[UNK]"
_MOST_LETTERS = 1000
_LINES_AT_ONCE = 8192  # a line of WikiText is a paragraph of about 500 characters


def load(folder: Path, vocab_size: int) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise BadInput(f"{folder}: has no tokenizer.json")
    try:
        made = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        reason = " ".join(str(error).split())
        raise BadInput(f"{path}: not a valid tokenizer: {reason}") from None
    return checked(made, path, vocab_size)


def checked(tokenizer: Tokenizer, path: Path, vocab_size: int) -> Tokenizer:
    """Return the tokenizer without truncation and padding; ``BadInput`` if BERT cannot use it."""
    tokens: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    missing = [name for name in _SPECIAL if name not in tokens]
    if missing:
        raise BadInput(f"{path}: has no token {' '.join(missing)}, which BERT needs")
    needed = max(tokens.values()) + 1
    if needed > vocab_size:
        raise BadInput(f"{path}: has {needed} tokens; vocab_size allows {vocab_size}")
    if needed == len(_SPECIAL):
        raise BadInput(f"{path}: has no tokens other than {' '.join(_SPECIAL)}")
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def train(lines: Iterable[str], second_pass: Iterable[str], vocab_size: int) -> Tokenizer:
    """Return a WordPiece tokenizer with BERT's normaliser, trained on ``lines``; ``second_pass`` is
    the same text again. The library's trainer numbers letters within words (``##a``) in the order
    of a hash table, which differs between ranks, and breaks ties by these numbers. With all letters
    specified and sorted, the result is always the same."""
    # At most a quarter of the tokens each for first letters of words and for other letters.
    letters = _letters(lines, min(_MOST_LETTERS, (vocab_size - len(_SPECIAL)) // 4))
    learned = _wordpiece({})
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*_SPECIAL, *(f"##{letter}" for letter in letters)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    learned.train_from_iterator((line.replace(_RARE, "") for line in second_pass), trainer)
    # A new tokenizer, because the trainer's matches letters such as "##a" literally in the text.
    made = _wordpiece(learned.get_vocab())
    made.add_special_tokens(list(_SPECIAL))
    return made


def tokenised(tokenizer: Tokenizer, lines: Iterable[str], vocab_size: int) -> Tokens:
    kind = tokens_type(vocab_size)
    parts = [np.empty(0, dtype=kind)]
    for chunk in _chunks(lines):
        replaced = [line.replace(_RARE, _UNKNOWN) for line in chunk]
        encodings = tokenizer.encode_batch_fast(replaced, add_special_tokens=False)
        count = sum(len(encoding) for encoding in encodings)
        ids = (number for encoding in encodings for number in encoding.ids)
        parts.append(np.fromiter(ids, dtype=kind, count=count))
    return np.concatenate(parts)


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    tokens: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    ordinary = sorted(number for name, number in tokens.items() if name not in _SPECIAL)
    return Vocabulary(
        tokens["[CLS]"], tokens["[SEP]"], tokens["[MASK]"], np.array(ordinary, dtype=np.int64)
    )


def _wordpiece(tokens: dict[str, int]) -> Tokenizer:
    made = Tokenizer(WordPiece(tokens, unk_token=_UNKNOWN))
    made.normalizer = BertNormalizer()
    made.pre_tokenizer = BertPreTokenizer()
    return made


def _letters(lines: Iterable[str], most: int) -> list[str]:
    """Return the most frequent characters of the normalised text, sorted."""
    counts = np.zeros(sys.maxunicode + 1, dtype=np.int64)
    for chunk in _chunks(lines):
        numbers = np.frombuffer("".join(chunk).encode("utf-32-le"), dtype="<u4")
        counts += np.bincount(numbers, minlength=len(counts))
    normaliser = BertNormalizer()
    letters: Counter[str] = Counter()
    for number in np.flatnonzero(counts):
        for letter in normaliser.normalize_str(chr(number)):
            if not letter.isspace():
                letters[letter] += int(counts[number])
    ranked = sorted(letters, key=lambda letter: (-letters[letter], letter))
    return sorted(ranked[:most])


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    left = iter(lines)
    return iter(lambda: list(islice(left, _LINES_AT_ONCE)), [])
