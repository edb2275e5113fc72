"""VGG16, InceptionV3 and ResNet50: their nets, recipes and made images."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from wattlaw.running.training.flops import flops_per_sample
from wattlaw.workloads.data_loading import InMemory
from wattlaw.workloads.workload import Seeds
from wattlaw_papers.workloads.torchvision_import import import_torchvision
from wattlaw_papers.workloads.vision import (
    INCEPTIONV3,
    RESNET50,
    VGG16,
    InceptionV3Options,
    Options,
    ResNet50Options,
    Vgg16Options,
)
from wattlaw_papers.workloads.vision.classifier import InceptionV3, ResNet50, Vgg16
from wattlaw_papers.workloads.vision.synthetic_images import Synthetic

import_torchvision()
from torchvision.models import vgg16 as torchvision_vgg16  # noqa: E402

SMALL = {"image_size": 32, "classes": 2, "train_samples": 64, "evaluation_samples": 16}
SMALL_VGG = Vgg16Options(**SMALL | {"train_samples": 256}, width=8, dropout=0.0, lr=0.03)
SMALL_RESNET = ResNet50Options(**SMALL, blocks=(1, 1, 1, 1), lr=0.003)
SMALL_INCEPTION = InceptionV3Options(
    **SMALL | {"image_size": 75, "train_samples": 32, "classes": 4}, dropout=0.0, lr=0.01
)


def seeds_of(*numbers: int) -> Seeds:
    return np.array(numbers, np.uint64)


@pytest.mark.parametrize(
    ("entry", "workload"), [(VGG16, Vgg16), (INCEPTIONV3, InceptionV3), (RESNET50, ResNet50)]
)
def test_full_size_nets_have_the_published_parameters_and_the_work_that_torch_counts(
    entry, workload
):
    options = entry.options()
    task = workload(options)
    size = options.image_size
    with torch.device("meta"):
        model = task.model()
    assert sum(one.numel() for one in model.parameters()) == entry.parameters
    images = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    data = InMemory((images, torch.zeros(2, dtype=torch.int64)))
    counted = flops_per_sample(task, model, data)
    assert entry.work(options)[:3] == (1_281_167, counted, 50_000)
    assert entry.work(entry.options(train_samples=64)).samples == 64
    assert entry.work(entry.options(image_size=300)) is None


def test_vgg16_at_full_width_is_torchvisions_to_the_bit():
    torch.manual_seed(3)
    ours = Vgg16(Vgg16Options()).model().net.state_dict()
    torch.manual_seed(3)
    theirs = torchvision_vgg16().state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_pixels_are_normalised_as_torchvision_does():
    from torchvision.transforms.v2 import functional as transforms

    model = Vgg16(SMALL_VGG).model()
    images, _ = Synthetic(8, 32, 2, training=True).batch(np.arange(8), seeds_of(*range(8)))
    expected = transforms.normalize(images / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    model.net = torch.nn.Identity()
    assert torch.allclose(model(images), expected, atol=1e-5)


def test_an_evaluation_counts_the_first_and_the_first_five_guesses():
    task = ResNet50(ResNet50Options(classes=6))
    scores = torch.tensor([[6.0, 5, 4, 3, 2, 1]]).repeat(3, 1)

    sums = task.evaluate(lambda _: scores, (torch.zeros(3, 3, 1, 1), torch.tensor([0, 4, 5])))
    found = task.metrics({"samples": 3, **{name: float(total) for name, total in sums.items()}})
    assert list(found) == ["loss", "top1", "top5"]
    assert found["top1"] == pytest.approx(1 / 3)
    assert found["top5"] == pytest.approx(2 / 3)
    by_hand = np.log(np.exp(np.arange(1, 7)).sum()) - np.mean([6, 2, 1])
    assert found["loss"] == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize(
    ("workload", "options"),
    [(Vgg16, SMALL_VGG), (ResNet50, SMALL_RESNET), (InceptionV3, SMALL_INCEPTION)],
    ids=["vgg16", "resnet50", "inceptionv3"],
)
def test_a_rank_can_train_on_a_single_image(workload, options):
    task = workload(options)
    model = task.model().train()
    loss = task.loss(model, task.training_data().batch(np.array([0]), seeds_of(5)))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_recipe_mit_is_plain_sgd_at_a_constant_rate_whatever_the_batch():
    task = Vgg16(Vgg16Options(**SMALL, width=1))
    optimizer = task.optimizer(task.model(), 4096, fused=False)
    schedule = task.schedule(optimizer, 4096, 10)
    schedule.before_step(0.1)
    schedule.after_epoch(1.0)
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.SGD)
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (1e-5, 0, 0)


def test_recipe_kit_grows_with_the_batch_warms_up_and_falls_on_a_plateau():
    task = Vgg16(Vgg16Options(**SMALL, width=1, recipe="kit", patience=1))
    optimizer = task.optimizer(task.model(), 512, fused=False)
    (group,) = optimizer.param_groups
    assert group["lr"] == pytest.approx(0.2)
    assert (group["momentum"], group["weight_decay"]) == (0.9, 1e-4)
    schedule = task.schedule(optimizer, 512, 100)
    rates = []
    for epoch in range(9):
        schedule.before_step(epoch)
        rates.append(group["lr"])
        schedule.after_epoch(1.0)
    assert rates == pytest.approx([0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.2, 0.2, 0.02])


@pytest.mark.parametrize(
    ("options", "changes", "words"),
    [
        (Options, {"source": "folder"}, "needs data"),
        (Options, {"data": "somewhere"}, "source folder only"),
        (Options, {"patience": 3}, "recipe kit only"),
        (ResNet50Options, {"blocks": [3, 4, 6]}, "blocks"),
    ],
)
def test_options_that_cannot_be_are_refused(options, changes, words):
    with pytest.raises(ValidationError, match=words):
        options.model_validate(changes)


def test_made_images_are_mirrored_by_their_seeds_and_only_for_training():
    high = 2**63
    training = Synthetic(300, 32, 10, training=True)
    plain, _ = training.batch(np.array([7, 7]), seeds_of(1, 2))
    mirrored, _ = training.batch(np.array([7, 263]), seeds_of(high + 1, high + 2))
    assert torch.equal(plain[0], plain[1])
    assert torch.equal(mirrored[0], plain[0].flip(2))
    assert torch.equal(mirrored[1], plain[0].flip(2))  # image 263 is image 7 of the pool again
    evaluation = Synthetic(300, 32, 10, training=False)
    both, _ = evaluation.batch(np.array([7, 7]), seeds_of(1, high))
    assert torch.equal(both[0], both[1])
    assert not torch.equal(both[0], plain[0])
