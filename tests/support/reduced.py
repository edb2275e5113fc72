"""Every workload at a size that a processor trains in seconds."""

from typing import Any, NamedTuple


class Reduced(NamedTuple):
    """A workload's options, without dropout where one and several ranks are to agree."""

    options: dict[str, Any]
    global_batch: int = 8
    has_batch_norm: bool = False
    samples: int = 32  # of one training epoch
    #: In place of options where two ways to the same sums are compared: at the rate at which VGG16
    #: learns in three epochs, a difference in the last digit becomes one in the third.
    calm: dict[str, Any] = {}  # noqa: RUF012 - never changed


WORKLOADS = {
    "digits-cnn": Reduced({"width": 8}, global_batch=64, samples=1437),
    "gpt": Reduced({
        "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocabulary": 64,
        "sequence": 16, "lr": 0.01, "train_samples": 64, "evaluation_samples": 16,
    }, samples=64),
    "vgg16": Reduced({
        "width": 8, "image_size": 32, "classes": 2, "dropout": 0.0, "lr": 0.03,
        "train_samples": 256, "evaluation_samples": 16,
    }, samples=256, calm={"lr": 0.003}),
    "inceptionv3": Reduced({
        "image_size": 75, "classes": 4, "dropout": 0.0, "lr": 0.003,
        "train_samples": 16, "evaluation_samples": 8,
    }, has_batch_norm=True, samples=16),
    "resnet50": Reduced({
        "blocks": [1, 1, 1, 1], "image_size": 32, "classes": 2, "lr": 0.003,
        "train_samples": 64, "evaluation_samples": 16,
    }, global_batch=16, has_batch_norm=True, samples=64),
    "bert-base": Reduced({
        "hidden_size": 32, "layers": 2, "heads": 2, "intermediate_size": 64,
        "vocab_size": 200, "sequence_length": 32, "dropout": 0.0, "lr": 0.003,
        "train_samples": 32, "evaluation_samples": 8,
    }),
    "schnet": Reduced({
        "hidden_channels": 16, "filters": 16, "interactions": 2, "gaussians": 10,
        "cutoff": 5.0, "train_samples": 32, "evaluation_samples": 8,
    }),
    "dimenet": Reduced({
        "hidden_channels": 16, "blocks": 1, "bilinear": 2, "spherical": 2, "radial": 3,
        "train_samples": 32, "evaluation_samples": 8,
    }),
    "fourcastnet": Reduced({
        "image_size": [32, 64], "channels": 4, "embed_dim": 32, "depth": 2, "num_blocks": 4,
        "lr": 0.003, "train_samples": 16, "evaluation_samples": 4,
    }, samples=16),
}  # fmt: skip
