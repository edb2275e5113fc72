"""``vgg16``, ``inceptionv3``, ``resnet50``: torchvision's nets on ImageNet or synthetic images.

Sources of images:

``synthetic``
    Images that are drawn from a fixed seed and kept in memory; no file is read.
``folder``
    ``DATA/train/CLASS/*`` and ``DATA/val/CLASS/*``, as for torchvision's ``ImageFolder``. Classes
    are numbered in the order of the names of the folders in ``train``.

Recipes: ``mit`` (Frey et al. 2022: plain SGD at a constant 1e-5) and ``kit`` (Huber et al. 2025,
arXiv 2508.07706: SGD with momentum and weight decay, a rate proportional to the global batch,
warm-up and plateau schedule).
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from wattlaw.workloads.workload import Entry, whole_number
from wattlaw_papers.workloads.data_sets import DataOptions, work_at_full_size

_PATIENCE = 10
#: Mean and standard deviation of red, green and blue over ImageNet's training images, from 0 to 1,
#: as torchvision's models use them.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Options(DataOptions):
    source: Literal["synthetic", "folder"] = Field(
        default="synthetic", description="synthetic or folder"
    )
    data: str | None = Field(
        default=None, description="the folder with the images, for source folder"
    )
    train_samples: int = whole_number(1_281_167, "synthetic training images")
    evaluation_samples: int = whole_number(50_000, "synthetic evaluation images")
    image_size: int = whole_number(224, "height and width in pixels", 32, 512)
    classes: int = whole_number(1000, "outputs of the net", 2, 100_000)
    recipe: Literal["mit", "kit"] = Field(
        default="mit",
        description="mit (plain SGD at a constant 1e-5) or kit (SGD with momentum 0.9 and weight "
        "decay 1e-4 at 0.1 x global batch / 256, 5 epochs of warm-up, then plateau)",
    )
    lr: float | None = Field(
        default=None,
        gt=0,
        description="learning rate for any global batch (a number > 0), or null for the recipe's",
    )
    patience: int = whole_number(
        _PATIENCE,
        "epochs without a lower loss after which recipe kit divides its rate by ten; the paper "
        "states none, 10 is PyTorch's default",
        low=0,
    )

    @model_validator(mode="after")
    def _patience_fits_recipe(self) -> Self:
        if self.recipe != "kit" and self.patience != _PATIENCE:
            raise ValueError("patience is set; allowed with recipe kit only")
        return self


class Vgg16Options(Options):
    width: int = whole_number(
        64, "channels of the first layers; all other layers are scaled with it", high=256
    )
    dropout: float = Field(default=0.5, ge=0, le=1, description="a number from 0 to 1")


class InceptionV3Options(Options):
    image_size: int = whole_number(299, "height and width in pixels", 75, 512)
    dropout: float = Field(default=0.5, ge=0, le=1, description="a number from 0 to 1")


_Blocks = Annotated[int, Field(strict=True, ge=1, le=64)]


class ResNet50Options(Options):
    blocks: tuple[_Blocks, _Blocks, _Blocks, _Blocks] = Field(
        default=(3, 4, 6, 3),
        strict=False,  # JSON and YAML have lists, not tuples
        description="residual blocks of the four stages (a list of 4 whole numbers from 1 to 64)",
    )


def _classifier(
    name: str, model: str, parameters: int, options: type[Options], flops: int, *sizes: str
) -> Entry:
    return Entry(
        name=name,
        summary=f"{model} on ImageNet (image folder or synthetic images)",
        parameters=parameters,
        metric="top1",
        options=options,
        factory=f"wattlaw_papers.workloads.vision.classifier:{options.__name__.removesuffix('Options')}",
        make_data="wattlaw_papers.workloads.vision.synthetic_images:make_data",
        real_input="wattlaw_papers.workloads.real_input:images",
        work=work_at_full_size(flops, "image_size", "classes", *sizes),
        modules=("torch", "torchvision", "PIL"),
        extra="vision",
    )


VGG16 = _classifier("vgg16", "VGG16", 138_357_544, Vgg16Options, 92_648_177_664, "width")
INCEPTIONV3 = _classifier(
    "inceptionv3", "InceptionV3", 23_834_568, InceptionV3Options, 34_240_933_248
)
RESNET50 = _classifier(
    "resnet50", "ResNet50", 25_557_032, ResNet50Options, 24_299_077_632, "blocks"
)
