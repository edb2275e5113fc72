"""The files of WikiText, their lines, and the blocks of tokens that are made of them."""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers

from wattlaw.common.errors import BadInput
from wattlaw_papers.workloads.data_cache import Array, cached_array, signature
from wattlaw_papers.workloads.language import Options, tokenizer
from wattlaw_papers.workloads.language.masking import MaskedBlocks, Tokens

_NAMES = {
    "train": ("wiki.train.tokens", "wiki.train.raw", "train.txt"),
    "validation": ("wiki.valid.tokens", "wiki.valid.raw", "valid.txt", "validation.txt"),
}


def find_text(folder: Path, split: Literal["train", "validation"]) -> Path:
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; data must be the folder with the files")
    names = _NAMES[split]
    files = [folder / name for name in names if (folder / name).is_file()]
    if len(files) != 1:
        present = " and ".join(path.name for path in files) or "none"
        raise BadInput(f"{folder}: has {present} of {', '.join(names)}; needs one")
    return files[0]


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines that are not blank; ``BadInput`` names the file and line."""
    number = 0
    try:
        with path.open("rb") as file:
            for content in file:
                number += 1
                line = content.decode("utf-8")
                if not line.isspace():
                    yield line
    except UnicodeDecodeError as error:
        byte = error.start + 1
        raise BadInput(f"{path}: line {number}: not UTF-8 at byte {byte} of the line") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None


class Corpus:
    """Training and validation text of a folder: its lines, joined, as blocks of
    ``sequence_length - 2`` tokens."""

    def __init__(self, options: Options) -> None:
        self._options, folder = options, Path(options.data or "")
        self._training, self._validation = (
            find_text(folder, "train"),
            find_text(folder, "validation"),
        )

    @cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        size = self._options.vocab_size
        if self._options.tokenizer is not None:
            return tokenizer.load(Path(self._options.tokenizer), size)

        def make() -> Array:
            lines = lines_of(self._training), lines_of(self._training)
            text: str = tokenizer.train(*lines, size).to_str()
            return np.frombuffer(text.encode(), np.uint8)

        text = cached_array(self._key("tokenizer", self._training, size), make)
        trained = tokenizers.Tokenizer.from_str(text.tobytes().decode())
        return tokenizer.checked(trained, self._training, size)

    @staticmethod
    def _key(kind: str, text: Path, *rules: str | int) -> list[Any]:
        # Another release of the library may split words differently.
        return [kind, tokenizers.__version__, signature([text]), *rules]

    def blocks(self, *, training: bool) -> MaskedBlocks:
        text = self._training if training else self._validation
        trained = self._tokenizer
        size, length = self._options.vocab_size, self._options.sequence_length

        def make() -> Tokens:
            return tokenizer.tokenised(trained, lines_of(text), size)

        # The tokens do not depend on the length of blocks, so the key does not contain it.
        rules = hashlib.sha256(trained.to_str().encode()).hexdigest()
        tokens = cached_array(self._key("tokens", text, rules, size), make)
        if len(tokens) < length - 2:
            given = f"{text}: the text has {len(tokens)} tokens"
            raise BadInput(f"{given}; a sequence of {length} needs {length - 2}")
        return MaskedBlocks(tokens, length, tokenizer.vocabulary(trained))
