"""Arrow columns from NumPy arrays, without the import of pandas by ``pa.array``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Flags = npt.NDArray[np.bool_]


def numbers(values: npt.NDArray[Any], valid: Flags | None = None) -> "pa.Array":
    """Return a column of int64 or float64, null where it is not ``valid``."""
    import pyarrow as pa

    kind = np.int64 if np.issubdtype(values.dtype, np.integer) else np.float64
    bits = None if valid is None else _bits(valid)
    plain = np.ascontiguousarray(values, dtype=kind)
    arrow_kind = pa.int64() if kind is np.int64 else pa.float64()
    return pa.Array.from_buffers(arrow_kind, len(plain), [bits, pa.py_buffer(plain)])


def flags(values: Flags) -> "pa.Array":
    """Return a boolean column."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def texts(
    values: Sequence[str], indices: npt.NDArray[Any], valid: Flags | None = None
) -> "pa.Array":
    """Return a column of text: ``values[indices]``, null where it is not ``valid``."""
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    dictionary = pa.StringArray.from_buffers(
        len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))
    )
    return pa.DictionaryArray.from_arrays(numbers(indices, valid), dictionary).dictionary_decode()


def text(value: str, count: int) -> "pa.Array":
    """Return a column of text with the same value in all rows."""
    return texts([value], np.zeros(count, dtype=np.int64))


def table(columns: Mapping[str, "pa.Array"], count: int, schema: "pa.Schema") -> "pa.Table":
    """Return a table of a schema; missing columns are null."""
    import pyarrow as pa

    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _bits(values: Flags) -> "pa.Buffer":
    import pyarrow as pa

    return pa.py_buffer(np.packbits(values, bitorder="little").tobytes())
