"""FourCastNet: training on synthetic weather, and the scores of forecasts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from wattlaw.common.errors import BadInput
from wattlaw_papers.workloads.weather import FOURCASTNET, Options
from wattlaw_papers.workloads.weather.fourcastnet import FourCastNet
from wattlaw_papers.workloads.weather.scores import relative_l2
from wattlaw_papers.workloads.weather.synthetic_weather import Climate, SyntheticWeather

NET = {"channels": 3, "image_size": [16, 32], "embed_dim": 16, "depth": 1, "num_blocks": 2}
SMALL = NET | {"train_samples": 64, "evaluation_samples": 16}
NO_SEEDS = np.zeros(0, np.uint64)


def made(**changes: object) -> FourCastNet:
    torch.manual_seed(0)
    return FourCastNet(Options.model_validate(SMALL | changes))


def first_samples(workload: FourCastNet) -> tuple[torch.Tensor, ...]:
    return workload.training_data().batch(np.arange(4), NO_SEEDS)


def test_the_model_has_the_parameters_of_its_entry():
    with torch.device("meta"):
        model = FourCastNet(Options()).model()
    assert sum(p.numel() for p in model.parameters()) == 72_920_832 == FOURCASTNET.parameters


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"source": "era5"}, "needs data"),
        ({"data": "/somewhere"}, "for source era5 only"),
        ({"source": "era5", "data": "/d", "train_samples": 8}, "'train_samples' is for"),
        ({"image_size": [721, 1440]}, "latitudes must be even"),
        ({"num_blocks": 7}, "must divide embed_dim 768"),
    ],
)
def test_options_that_contradict_are_refused(options, words):
    with pytest.raises(ValidationError, match=words):
        Options.model_validate(options)


def test_a_loss_of_two_steps_is_that_of_two_calls_with_the_gradient_through_both():
    workload = made(stage="finetune")
    model = workload.model()
    data = first_samples(workload)
    assert len(data) == 3

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss, list(model.parameters()), retain_graph=True))

    (once,) = model(data[0])
    (twice,) = model(once)
    expected = relative_l2(once, data[1]).mean() + relative_l2(twice, data[2]).mean()
    loss = workload.loss(model, data)
    torch.testing.assert_close(loss, expected)
    (cut,) = model(once.detach())
    stopped = gradients(relative_l2(once, data[1]).mean() + relative_l2(cut, data[2]).mean())
    found = gradients(loss)
    for one, other in zip(found, gradients(expected), strict=True):
        torch.testing.assert_close(one, other)
    assert any(not torch.allclose(one, other) for one, other in zip(found, stopped, strict=True))


def test_the_rate_falls_along_half_a_cosine_over_the_runs_epochs():
    workload = made(stage="finetune")
    optimizer = workload.optimizer(workload.model(), 64, fused=False)
    schedule = workload.schedule(optimizer, 64, 50)
    rates = []
    for done in (0, 12.5, 25, 50):
        schedule.before_step(done)
        rates.append(optimizer.param_groups[0]["lr"])
    assert isinstance(optimizer, torch.optim.Adam)
    np.testing.assert_allclose(rates, 1e-4 * np.array([1, 0.5 + 2**-1.5, 0.5, 0]), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_gives_finite_gradients_and_nearly_the_same_loss(dtype):
    workload = made(stage="finetune")
    model, data = workload.model(), first_samples(workload)
    exact = workload.loss(model, data)
    with torch.autocast("cpu", dtype):
        loss = workload.loss(model, data)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() != exact.item()
    assert loss.item() == pytest.approx(exact.item(), rel=0.01)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("wrapped", ["run", "bare", "ddp"])
def test_finetuning_starts_from_the_weights_of_pretraining(tmp_path, wrapped):
    pretrained = made().model()
    state = pretrained.state_dict()
    content = {
        "run": {"model": state, "epochs_done": 3},
        "bare": pretrained.network.state_dict(),
        "ddp": {f"module._orig_mod.{name}": value for name, value in state.items()},
    }
    torch.save(content[wrapped], tmp_path / "model.pt")
    workload = made(stage="finetune", start_from=str(tmp_path / "model.pt"))
    torch.manual_seed(1)
    model = workload.model()
    found = dict(model.named_parameters())
    for name, parameter in pretrained.named_parameters():
        assert torch.equal(found[name], parameter)


def _saved(path, **changes):
    torch.save(made(**changes).model().state_dict(), path)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.write_text("words"), "not a checkpoint"),
        (lambda path: _saved(path, embed_dim=32), r"pos_embed: .*\[1, 8, 32\].*\[1, 8, 16\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(tmp_path, write, words):
    path = tmp_path / "model.pt"
    write(path)
    with pytest.raises(BadInput, match=words) as caught:
        made(start_from=str(path)).model()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def climate():
    return Climate(4, 32, 64, seed=3)


@settings(max_examples=20)
@given(st.integers(0, 53_999), st.integers(1, 8), st.integers(1, 2))
def test_a_sample_continues_the_one_before_it(climate, index, step, steps):
    data = SyntheticWeather(climate, first_year=0, samples=54_020, steps=steps, step=step)
    if index % 1460 + step >= 1460:
        return
    times = data.batch(np.array([index, index + step]), NO_SEEDS)
    assert len(times) == steps + 1
    assert torch.equal(times[1][0], times[0][1])


def test_training_and_evaluation_are_different_years():
    workload = made()
    training, evaluation = workload.training_data(), workload.evaluation_data()
    assert (len(training), len(evaluation)) == (64, 16)
    one, other = (data.batch(np.arange(2), NO_SEEDS)[0] for data in (training, evaluation))
    assert not torch.allclose(one, other)
