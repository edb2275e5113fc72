"""The files of WikiText, their lines, and the blocks of tokens that are made of them."""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tokenizers

from wattlaw.common.errors import BadInput
from wattlaw.common.text import collapse_whitespace
from wattlaw_papers.workloads.data_cache import Array, DataCache, signature
from wattlaw_papers.workloads.data_sets import VALIDATION_NAMES
from wattlaw_papers.workloads.language import Options, tokenizer
from wattlaw_papers.workloads.language.masking import MaskedBlocks, Tokens
from wattlaw_papers.workloads.shards import check_all_there

Source = Literal["text", "parquet"]

_NAMES = {
    "train": ("wiki.train.tokens", "wiki.train.raw", "train.txt"),
    "validation": ("wiki.valid.tokens", "wiki.valid.raw", "valid.txt", "validation.txt"),
}
#: The public repository of WikiText has a folder for each of its variants.
_VARIANTS = ("wikitext-103-raw-v1", "wikitext-103-v1")
_COLUMN = "text"
_ROWS_AT_ONCE = 8192


class Text(NamedTuple):
    files: tuple[Path, ...]
    source: Source

    def lines(self) -> Iterator[str]:
        """Yield lines or Parquet rows that are not blank; ``BadInput`` names the file and line."""
        read, unit = (_text_lines, "line") if self.source == "text" else (_parquet_rows, "row")
        for path in self.files:
            try:
                for number, value in enumerate(read(path), start=1):
                    place = f"{path}: {unit} {number}"
                    if value is None:
                        raise BadInput(f"{place}: {_COLUMN!r} is null; it must be a string")
                    line = value.decode("utf-8")
                    if line and not line.isspace():
                        yield line
            except UnicodeDecodeError as error:
                byte = error.start + 1
                raise BadInput(f"{place}: not UTF-8 at byte {byte} of the {unit}") from None
            except OSError as error:
                raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None


def find_text(folder: Path, source: Source, split: Literal["train", "validation"]) -> Text:
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; data must be the folder with the files")
    if source == "parquet":
        return Text(_shards(folder, split), source)
    names = _NAMES[split]
    files = [folder / name for name in names if (folder / name).is_file()]
    if len(files) != 1:
        present = " and ".join(path.name for path in files) or "none"
        raise BadInput(f"{folder}: has {present} of {', '.join(names)}; needs one")
    return Text(tuple(files), source)


def _shards(folder: Path, split: str) -> tuple[Path, ...]:
    places = (folder, *(folder / name for name in _VARIANTS))
    folder = next((place for place in places if _parquet_files(place, "train")), folder)
    names = VALIDATION_NAMES if split == "validation" else (split,)
    found = ((name, _parquet_files(folder, name)) for name in names)
    split, files = next(((name, files) for name, files in found if files), (split, []))
    if not files:
        raise BadInput(f"{folder}: has no file {split}-*.parquet")
    if irregular := [path for path in files if not path.is_file()]:
        raise BadInput(f"{irregular[0]}: is not a regular file")
    check_all_there(files)
    return tuple(files)


def _parquet_files(folder: Path, split: str) -> list[Path]:
    patterns = (f"{split}-*.parquet", f"{split}.parquet", f"{split}/*.parquet")
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def _text_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _parquet_rows(path: Path) -> Iterator[bytes | None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if _COLUMN not in names:
                raise BadInput(f"{path}: has no column {_COLUMN!r}, only {', '.join(names)}")
            kind = file.schema_arrow.field(_COLUMN).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise BadInput(f"{path}: column {_COLUMN!r} is {kind}; it must be a string")
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[_COLUMN]):
                yield from batch.column(0).cast(pa.large_binary()).to_pylist()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        reason = collapse_whitespace(str(error))
        raise BadInput(f"{path}: not a valid Parquet file: {reason}") from None


class Corpus:
    """Training and validation text of a folder: its lines, joined in the order of the files, as
    blocks of ``sequence_length - 2`` tokens."""

    def __init__(self, options: Options) -> None:
        if options.source == "synthetic" or options.data is None:
            raise ValueError("source synthetic has no files")
        self._options = options
        self._training = find_text(Path(options.data), options.source, "train")
        self._validation = find_text(Path(options.data), options.source, "validation")
        self._cache = DataCache(Path(options.cache) if options.cache is not None else None)

    @cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        size = self._options.vocab_size
        if self._options.tokenizer is not None:
            return tokenizer.load(Path(self._options.tokenizer), size)

        def make() -> Array:
            lines = self._training.lines
            text: str = tokenizer.train(lines(), lines(), size).to_str()
            return np.frombuffer(text.encode(), np.uint8)

        text = self._cache.array(self._key("tokenizer", self._training, size), make)
        trained = tokenizers.Tokenizer.from_str(text.tobytes().decode())
        return tokenizer.checked(trained, self._training.files[0], size)

    @staticmethod
    def _key(kind: str, text: Text, *rules: str | int) -> list[Any]:
        # Another release of the library may split words differently.
        return [kind, tokenizers.__version__, signature(text.files), *rules]

    def blocks(self, *, training: bool) -> MaskedBlocks:
        text = self._training if training else self._validation
        trained = self._tokenizer
        size, length = self._options.vocab_size, self._options.sequence_length

        def make() -> Tokens:
            return tokenizer.tokenised(trained, text.lines(), size)

        # The tokens do not depend on the length of blocks, so the key does not contain it.
        rules = hashlib.sha256(trained.to_str().encode()).hexdigest()
        tokens = self._cache.array(self._key("tokens", text, rules, size), make)
        if len(tokens) < length - 2:
            given = f"{text.files[0]}: the text has {len(tokens)} tokens"
            raise BadInput(f"{given}; a sequence of {length} needs {length - 2}")
        return MaskedBlocks(tokens, length, tokenizer.vocabulary(trained))
