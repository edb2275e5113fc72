"""``vgg16``, ``inceptionv3``, ``resnet50``: torchvision's nets on ImageNet, or on made images.

Three sources of images:

``synthetic``
    drawn once from a fixed seed and kept in memory; no file is read.
``folder``
    ``DATA/train/CLASS/*`` and ``DATA/val/CLASS/*``, as torchvision's ``ImageFolder`` has it;
    classes are numbered in the order of the names of the folders in ``train``.
``tfrecord``
    shards ``DATA/train-*`` and ``DATA/validation-*`` of ``tf.train.Example`` records with the
    features ``image/encoded`` (a JPEG file) and ``image/class/label``. Where a shard has an index
    beside it (``SHARD.idx``, ``SHARD.index`` or ``SHARD.tfindex``, as ``python -m
    tfrecord.tools.tfrecord2idx SHARD INDEX`` writes it), the shard is not searched for its
    records at the start of every run.

Two recipes: ``mit`` (Frey et al. 2022: plain SGD at a constant 1e-5) and ``kit`` (Huber et al.
2025, arXiv 2508.07706: SGD with momentum and weight decay, a rate that grows with the global
batch, warm-up and plateau schedule).
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from wattlaw.workloads.workload import Entry, WorkloadOptions, work_at_full_size

#: Inception's auxiliary head needs the full image to have something to pool.
_AUX_SIZE = 299
_PATIENCE = 10
#: Mean and standard deviation of red, green and blue over ImageNet's training images, from 0 to 1,
#: as torchvision's models use them.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Options(WorkloadOptions):
    """Options of all models."""

    source: Literal["synthetic", "tfrecord", "folder"] = Field(
        default="synthetic", description="synthetic, tfrecord or folder"
    )
    data: str | None = Field(
        default=None, description="the folder with the images, for source tfrecord and folder"
    )
    first_label: Literal[0, 1] = Field(
        default=1,
        description="the number of the first class in tfrecords: 1 (as TensorFlow's ImageNet "
        "scripts count, from 1 to 1000) or 0",
    )
    train_samples: int = Field(
        default=1_281_167, ge=1, description="synthetic images to train on (a whole number >= 1)"
    )
    evaluation_samples: int = Field(
        default=50_000, ge=1, description="synthetic images to evaluate on (a whole number >= 1)"
    )
    image_size: int = Field(
        default=224, ge=32, le=512, description="height and width in pixels (32 to 512)"
    )
    classes: int = Field(
        default=1000, ge=2, le=100_000, description="outputs of the net (2 to 100000)"
    )
    recipe: Literal["mit", "kit"] = Field(
        default="mit",
        description="mit (plain SGD at a constant 1e-5) or kit (SGD with momentum 0.9 and weight "
        "decay 1e-4 at 0.1 x global batch / 256, 5 epochs of warm-up, then plateau)",
    )
    lr: float | None = Field(
        default=None,
        gt=0,
        description="learning rate in place of the recipe's, whatever the global batch (a number "
        "> 0, or null for the recipe's)",
    )
    patience: int = Field(
        default=_PATIENCE,
        ge=0,
        description="epochs without a lower loss after which recipe kit divides its rate by ten "
        "(a whole number >= 0; the paper names none, 10 is PyTorch's default)",
    )

    @model_validator(mode="after")
    def _data_fit_the_source(self) -> "Options":
        if self.source == "synthetic" and self.data is not None:
            raise ValueError("data is given; allowed with source tfrecord or folder only")
        if self.source != "synthetic" and self.data is None:
            raise ValueError(f"source {self.source} needs data: the folder with the images")
        if self.recipe != "kit" and self.patience != _PATIENCE:
            raise ValueError("patience is given; allowed with recipe kit only")
        return self


class Vgg16Options(Options):
    """Options of VGG16."""

    width: int = Field(
        default=64,
        ge=1,
        le=256,
        description="channels of the first layers; all others, and the classifier, go with it (1 "
        "to 256)",
    )
    dropout: float = Field(default=0.5, ge=0, le=1, description="a number from 0 to 1")


class InceptionV3Options(Options):
    """Options of InceptionV3."""

    image_size: int = Field(
        default=_AUX_SIZE, ge=75, le=512, description="height and width in pixels (75 to 512)"
    )
    aux: bool = Field(
        default=True,
        description="whether there is an auxiliary head (true needs image_size >= 299, or false)",
    )
    dropout: float = Field(default=0.5, ge=0, le=1, description="a number from 0 to 1")

    @model_validator(mode="after")
    def _images_fit_the_head(self) -> "InceptionV3Options":
        if self.aux and self.image_size < _AUX_SIZE:
            raise ValueError(
                f"image_size is {self.image_size} and aux is true; allowed: image_size >= "
                f"{_AUX_SIZE}, or aux: false"
            )
        return self


_Blocks = Annotated[int, Field(strict=True, ge=1, le=64)]


class ResNet50Options(Options):
    """Options of ResNet50."""

    blocks: tuple[_Blocks, _Blocks, _Blocks, _Blocks] = Field(
        default=(3, 4, 6, 3),
        strict=False,  # files have lists where Python has tuples
        description="residual blocks of the four stages (a list of 4 whole numbers from 1 to 64)",
    )


_MAKE_DATA = "wattlaw.workloads.vision.make_data:make_data"
_MODULES = ("torch", "torchvision", "PIL", "tfrecord")

VGG16 = Entry(
    name="vgg16",
    summary="VGG16 on ImageNet (TFRecords, image folder or synthetic images)",
    parameters=138_357_544,
    metric="top1",
    options=Vgg16Options,
    factory="wattlaw.workloads.vision.classifier:Vgg16",
    make_data=_MAKE_DATA,
    work=work_at_full_size(92_648_177_664, "image_size", "classes", "width"),
    modules=_MODULES,
    extra="vision",
)
INCEPTIONV3 = Entry(
    name="inceptionv3",
    summary="InceptionV3 on ImageNet (TFRecords, image folder or synthetic images)",
    parameters=27_161_264,
    metric="top1",
    options=InceptionV3Options,
    factory="wattlaw.workloads.vision.classifier:InceptionV3",
    make_data=_MAKE_DATA,
    work=work_at_full_size(34_275_032_448, "image_size", "classes", "aux"),
    modules=_MODULES,
    extra="vision",
)
RESNET50 = Entry(
    name="resnet50",
    summary="ResNet50 on ImageNet (TFRecords, image folder or synthetic images)",
    parameters=25_557_032,
    metric="top1",
    options=ResNet50Options,
    factory="wattlaw.workloads.vision.classifier:ResNet50",
    make_data=_MAKE_DATA,
    work=work_at_full_size(24_299_077_632, "image_size", "classes", "blocks"),
    modules=_MODULES,
    extra="vision",
)
