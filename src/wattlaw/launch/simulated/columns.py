"""Arrow columns from NumPy arrays. ``pa.array`` would import pandas, in every process anew."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Flags = npt.NDArray[np.bool_]


def numbers(values: npt.NDArray[Any], known: Flags | None = None) -> "pa.Array":
    """Return a column of int64 or float64, null where it is not ``known``."""
    import pyarrow as pa

    kind = np.int64 if np.issubdtype(values.dtype, np.integer) else np.float64
    bits = None if known is None else _bits(known)
    plain = np.ascontiguousarray(values, dtype=kind)
    arrow_kind = pa.int64() if kind is np.int64 else pa.float64()
    return pa.Array.from_buffers(arrow_kind, len(plain), [bits, pa.py_buffer(plain)])


def flags(values: Flags) -> "pa.Array":
    """Return a column of true and false."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def texts(words: Sequence[str], which: npt.NDArray[Any], known: Flags | None = None) -> "pa.Array":
    """Return a column of text: ``words[which]``, null where it is not ``known``."""
    import pyarrow as pa

    coded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, coded)]).astype(np.int32)
    whole = pa.StringArray.from_buffers(
        len(words), pa.py_buffer(ends), pa.py_buffer(b"".join(coded))
    )
    return pa.DictionaryArray.from_arrays(numbers(which, known), whole).dictionary_decode()


def text(word: str, count: int) -> "pa.Array":
    """Return a column that says one word throughout."""
    return texts([word], np.zeros(count, dtype=np.int64))


def table(columns: Mapping[str, "pa.Array"], count: int, schema: "pa.Schema") -> "pa.Table":
    """Return a table of a schema; columns that are not given are null."""
    import pyarrow as pa

    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _bits(values: Flags) -> "pa.Buffer":
    import pyarrow as pa

    return pa.py_buffer(np.packbits(values, bitorder="little").tobytes())
