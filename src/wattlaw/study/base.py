"""What the models of a study file have in common: how strict they are, names, counts, words."""

from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
MAX_COUNT = 10_000_000
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Word = Annotated[str, StringConstraints(max_length=10_000, pattern=r"^[^\x00]*$")]

_set = object.__setattr__


class Model(BaseModel):
    """Frozen, strict (no text taken for a number), and closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    @classmethod
    def from_valid(cls, **values: Any) -> Self:
        """Return a model of values that are known to be valid; every field has to be given.

        Five times as quick as validation, for plans of very many runs.
        """
        made = cls.__new__(cls)
        _set(made, "__dict__", values)
        _set(made, "__pydantic_fields_set__", _field_names(cls))
        _set(made, "__pydantic_extra__", None)
        _set(made, "__pydantic_private__", None)
        return made


@cache
def _field_names(model: type[BaseModel]) -> set[str]:
    """Return the one set that all frozen models of a kind share."""
    return set(model.model_fields)
