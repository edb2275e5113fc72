"""From files to blocks of tokens."""

import hashlib
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from wattlaw.errors import BadInput
from wattlaw.workloads.language import Options, tokenizer
from wattlaw.workloads.language.cache import Cache
from wattlaw.workloads.language.masking import MaskedBlocks, Tokens
from wattlaw.workloads.language.text import Source, Text, training_text, validation_text


class Corpus:
    """Training and validation text of a folder, as blocks of tokens.

    Articles follow one another as they do in the files: the tokens of all lines make one run,
    which is cut into blocks of ``sequence_length - 2`` tokens; the rest after the last whole
    block is dropped.

    Parameters
    ----------
    options
        Where the files are and what they are cut into.
    source
        What the files are.
    folder
        Where they are.
    """

    def __init__(self, options: Options, source: Source, folder: Path) -> None:
        self._options = options
        self._training = training_text(folder, source)
        self._validation = validation_text(folder, source)
        self._cache = Cache(Path(options.cache) if options.cache is not None else None)

    def training(self) -> MaskedBlocks:
        """Return the blocks of the training text."""
        return self._blocks(self._training)

    def evaluation(self) -> MaskedBlocks:
        """Return the blocks of the validation text."""
        return self._blocks(self._validation)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        size = self._options.vocab_size
        if self._options.tokenizer is not None:
            return tokenizer.load(Path(self._options.tokenizer), size)

        def make() -> str:
            text = self._training
            made: str = tokenizer.train(text.lines(), text.lines(), size).to_str()
            return made

        kept = self._cache.text(["tokenizer", self._training.signature(), size], make)
        trained = Tokenizer.from_str(kept)
        return tokenizer.checked(trained, self._training.files[0], size)

    def _blocks(self, text: Text) -> MaskedBlocks:
        words = self._tokenizer
        size, length = self._options.vocab_size, self._options.sequence_length

        def make() -> Tokens:
            return tokenizer.tokenised(words, text.lines(), size)

        # Blocks are cut from the same tokens whatever their length: it is no part of the key.
        rules = hashlib.sha256(words.to_str().encode()).hexdigest()
        tokens = self._cache.array(["tokens", text.signature(), rules, size], make)
        if len(tokens) < length - 2:
            raise BadInput(
                f"{text.files[0]}: the text has {len(tokens)} tokens; a sequence of {length} "
                f"needs {length - 2}"
            )
        return MaskedBlocks(tokens, length, tokenizer.vocabulary(words))
