"""``digits-cnn``: a small convolutional net on scikit-learn's handwritten digits.

Real data that ships with scikit-learn: 1,797 grey images of 8 x 8 pixels in 10 classes (UCI Optical
Recognition of Handwritten Digits), split once into 1,437 for training and 360 for testing.
"""

from pydantic import Field

from wattlaw.workloads.workload import Entry, Work, WorkloadOptions, is_full_size, whole_number

#: Forward and backward, as ``training.flops`` counts them.
_FLOPS_PER_SAMPLE = 7_548_672
_TRAINING_IMAGES, TEST_IMAGES = 1437, 360


class Options(WorkloadOptions):
    """Options of the workload."""

    lr: float = Field(
        default=0.05, gt=0, description="learning rate at global batch 64 (a number > 0)"
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="a number >= 0 and < 1")
    width: int = whole_number(32, "channels of the first layer", high=1024)


ENTRY = Entry(
    name="digits-cnn",
    summary="small convolutional net on handwritten digits (real data, seconds per run)",
    parameters=85_066,
    metric="accuracy",
    options=Options,
    factory="wattlaw.workloads.digits.cnn:DigitsCnn",
    work=lambda options: (
        Work(_TRAINING_IMAGES, _FLOPS_PER_SAMPLE, TEST_IMAGES)
        if is_full_size(options, "width")
        else None
    ),
    modules=("torch", "sklearn"),
)
