"""Plain training loops as people write them, to which our loop is compared.

They follow torchvision's reference scripts (vision), PyTorch Geometric's examples (molecules) and
FourCastNet's script (weather). The loop for language is transformers' ``Trainer``, in
``reference_trainer``. Printing and other work of those scripts besides training is omitted, so
these loops are at least as fast. Each trains the workload's net on the workload's samples.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from loop_process import Case, Loop, Moment
from wattlaw.common import registry
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue

#: The largest number of different samples; our loop has hundreds to thousands.
_POOLS = {"vgg16": 256, "inceptionv3": 256, "resnet50": 256, "fourcastnet": 16}
_MOLECULES = 3072
_AUX_WEIGHT = 0.4
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def reference(case: Case) -> tuple[nn.Module, dict[str, Loop]]:
    """Return the model of a case and its reference loops by name, the first is ``as_used``."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    workload = catalogue.build(WorkloadSpec(name=case.workload, options=case.options))
    if case.workload == "bert-base":
        from reference_trainer import language

        return language(case, workload, device)
    family = {
        "schnet": _molecules,
        "dimenet": _molecules,
        "fourcastnet": _weather,
    }
    return family.get(case.workload, _vision)(case, workload, device)


def _pool(case: Case, workload: Any) -> Any:
    """Return the samples of a workload as one batch."""
    dataset = workload.training_data()
    number = min(len(dataset), _POOLS.get(case.workload, _MOLECULES))
    return dataset.batch(np.arange(number), np.random.default_rng(0).integers(
        2**63, size=number, dtype=np.uint64
    ))  # fmt: skip


def _loader(case: Case, dataset: Any, device: torch.device, make: Any = DataLoader) -> Any:
    """Return a loader of random batches; samples are repeated if an epoch needs more."""
    return make(
        dataset,
        batch_size=case.batch,
        sampler=RandomSampler(dataset, num_samples=case.samples),
        num_workers=case.loader_workers,
        persistent_workers=case.loader_workers > 0,
        pin_memory=device.type == "cuda",
    )


def _prepared(case: Case, net: nn.Module, device: torch.device) -> nn.Module:
    torch.backends.cudnn.benchmark = True  # as torchvision's and FourCastNet's scripts have it
    net.to(device).train()
    if case.channels_last:
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if case.compile:
        compiled: Any = torch.compile(net)
        return compiled  # type: ignore[no-any-return]
    return net


def _autocast(case: Case, device: torch.device) -> torch.autocast:
    dtype = _AUTOCAST.get(case.precision)
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def _timed(epoch: Callable[[], None]) -> Loop:
    def loop(epochs: int) -> tuple[Moment, Moment]:
        start = Moment.now()
        for _ in range(epochs):
            epoch()
        return start, Moment.now()

    return loop


def _vision(
    case: Case, workload: Any, device: torch.device
) -> tuple[nn.Module, dict[str, Loop]]:  # fmt: skip
    """Return the loops of torchvision's ``references/classification``, ``train_one_epoch``.

    Its images are decoded and normalised in advance. ``as_used`` logs loss, top-1 and top-5
    accuracy of every batch; ``bare`` does not.
    """
    model = workload.model()
    images, labels = _pool(case, workload)
    floats = torch.empty(images.shape)
    for start in range(0, len(images), 16):
        part = slice(start, start + 16)
        floats[part] = images[part] * model.scale + model.shift
    loader = _loader(case, TensorDataset(floats, labels), device)
    optimizer = workload.optimizer(model, case.batch, fused=case.fused)
    net = _prepared(case, model.net, device)
    criterion = nn.CrossEntropyLoss()
    form = torch.channels_last if case.channels_last else torch.preserve_format

    def epoch(*, logged: bool) -> None:
        for image, target in loader:
            image = image.to(device, non_blocking=True, memory_format=form)  # noqa: PLW2901
            target = target.to(device, non_blocking=True)  # noqa: PLW2901
            with _autocast(case, device):
                output = net(image)
                if isinstance(output, tuple):
                    output, aux = output
                    loss = criterion(output, target) + _AUX_WEIGHT * criterion(aux, target)
                else:
                    loss = criterion(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if logged:
                first, five = _accuracy(output, target)
                meters = loss.item(), first.item(), five.item()
                assert len(meters) == 3

    loops = {"as_used": True, "bare": False}
    return model, {
        name: _timed(lambda logged=logged: epoch(logged=logged))  # type: ignore[misc]
        for name, logged in loops.items()
    }


@torch.no_grad()
def _accuracy(output: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
    """Return top-1 and top-5 accuracy in percent."""
    predictions = output.topk(5, 1).indices.t()
    hits = predictions == target[None]
    return [hits[:k].flatten().sum(dtype=torch.float32) * (100 / len(target)) for k in (1, 5)]


def _molecules(
    case: Case, workload: Any, device: torch.device
) -> tuple[nn.Module, dict[str, Loop]]:  # fmt: skip
    """Return the loops of PyTorch Geometric's examples, with its loader and nets.

    Its wheel does not contain the compiled extensions for graphs. They are replaced by the
    functions that our workloads use. ``as_used`` reads the loss of every batch; ``bare`` does not.
    """
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader

    options = registry.load(catalogue.GROUP, case.workload).options(**case.options)
    model = workload.model()
    source = workload.training_data()
    graphs = []
    for number in range(min(len(source), _MOLECULES)):
        z, pos, *_, target = source.batch(np.array([number]), np.zeros(1, np.uint64))
        y = ((target.double() - model.mean) / model.std).float()
        graphs.append(Data(z=z, pos=pos, y=y))
    loader = _loader(case, graphs, device, GraphLoader)
    plain = _schnet(options) if case.workload == "schnet" else _dimenet(options)
    net = _prepared(case, plain, device)
    optimizer = workload.optimizer(plain, case.batch, fused=case.fused)

    def epoch(*, logged: bool) -> None:
        total_loss = 0.0
        for data in loader:
            data = data.to(device)  # noqa: PLW2901
            optimizer.zero_grad()
            with _autocast(case, device):
                output = net(data.z, data.pos, data.batch)
                loss = functional.l1_loss(output.squeeze(-1).float(), data.y)
            loss.backward()
            optimizer.step()
            if logged:
                total_loss += float(loss.detach()) * data.num_graphs

    loops = {"as_used": True, "bare": False}
    return plain, {
        name: _timed(lambda logged=logged: epoch(logged=logged))  # type: ignore[misc]
        for name, logged in loops.items()
    }


def _schnet(options: Any) -> nn.Module:
    from torch_geometric.nn import SchNet

    from wattlaw_papers.workloads.molecules.nets import radius_graph

    def interaction_graph(
        pos: torch.Tensor, batch: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        source, target = edges = radius_graph(pos, options.cutoff, batch)
        return edges, (pos[source] - pos[target]).norm(dim=-1)

    net: nn.Module = SchNet(
        hidden_channels=options.hidden_channels,
        num_filters=options.filters,
        num_interactions=options.interactions,
        num_gaussians=options.gaussians,
        cutoff=options.cutoff,
        interaction_graph=interaction_graph,
    )
    return net


def _dimenet(options: Any) -> nn.Module:
    from torch_geometric.nn.models import dimenet

    from wattlaw_papers.workloads.molecules import graphs

    def triplets(edges: torch.Tensor, num_nodes: int) -> tuple[torch.Tensor, ...]:
        (source, target), (kj, ji) = edges, graphs.paths(edges, num_nodes)
        return target, source, target[ji], source[ji], source[kj], kj, ji

    dimenet.radius_graph, dimenet.triplets = graphs.radius_graph, triplets
    net: nn.Module = dimenet.DimeNet(
        hidden_channels=options.hidden_channels,
        out_channels=1,
        num_blocks=options.blocks,
        num_bilinear=options.bilinear,
        num_spherical=options.spherical,
        num_radial=options.radial,
        cutoff=options.cutoff,
    )
    return net


def _weather(
    case: Case, workload: Any, device: torch.device
) -> tuple[nn.Module, dict[str, Loop]]:  # fmt: skip
    """Return the loop of FourCastNet's ``train_one_epoch``, which logs nothing in an epoch."""
    before, after = _pool(case, workload)
    loader = _loader(case, TensorDataset(before, after), device)
    model = workload.model()
    optimizer = workload.optimizer(model, case.batch, fused=case.fused)
    net = _prepared(case, model.network, device)

    def epoch() -> None:
        for state, truth in loader:
            state = state.to(device, non_blocking=True)  # noqa: PLW2901
            truth = truth.to(device, non_blocking=True)  # noqa: PLW2901
            optimizer.zero_grad()
            with _autocast(case, device):
                forecast = net(state)
                number = len(truth)
                error = torch.norm(forecast.reshape(number, -1) - truth.reshape(number, -1), 2, 1)
                loss = torch.mean(error / torch.norm(truth.reshape(number, -1), 2, 1))
            loss.backward()
            optimizer.step()

    return model, {"as_used": _timed(epoch)}
