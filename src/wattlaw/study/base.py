"""What the models of a study file have in common: how strict they are, names, counts, words."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
MAX_COUNT = 10_000_000
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Word = Annotated[str, StringConstraints(max_length=10_000, pattern=r"^[^\x00]*$")]


class Model(BaseModel):
    """Frozen, strict (no text taken for a number), and closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )
