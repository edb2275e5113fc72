"""The hardware files, what may stand in a user's own, and how what may not is refused."""

import math
import re
from pathlib import Path

import pytest
import yaml

import paths
from wattlaw.common.errors import BadInput
from wattlaw.hardware.cluster import Gpu
from wattlaw.hardware.library import cluster_names, gpu_names, read_cluster
from wattlaw_simulator.command.simulation_text import parameters

PAGE = (paths.ROOT / "docs" / "simulator.md").read_text()
DOC = PAGE.partition("\n## Hardware\n")[2].partition("\n## ")[0]
EXAMPLE = re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)[0]
ALL = cluster_names() + gpu_names()


def board(name: str) -> Gpu:
    return read_cluster(name).gpu


@pytest.mark.parametrize("name", ALL)
def test_every_number_of_every_file_has_a_source_and_is_finite(name):
    for entry in parameters(read_cluster(name)):
        assert entry["source"].strip(), entry
        assert math.isfinite(entry["value"]), entry
        assert entry["value"] > 0, entry


def test_a_machine_is_calibrated_only_if_a_source_of_its_numbers_says_so(tmp_path):
    calibrated = {name: read_cluster(name).calibrated for name in ALL}
    assert calibrated.pop("mit-v100") == ("storage_gb_s", "epoch_ms")
    assert set(calibrated.values()) == {()}
    assert read_cluster("kit-a100").calibration == "uncalibrated"
    source = "calibrated: with our runs of May"
    found = read_cluster(put(tmp_path, "network.sources.latency_us", source))
    assert found.node.gpus == yaml.safe_load(EXAMPLE)["node"]["gpus"]
    assert found.gpu.peak_tflops["fp16"] > found.gpu.peak_tflops["fp32"]
    assert (found.calibration, found.calibrated) == ("calibrated", ("latency_us",))


# Multiply-adds of an SM per cycle, from the architectures' white papers; SMs of the boards.
@pytest.mark.parametrize(
    ("name", "sms", "per_cycle"),
    [
        ("v100-pcie-32gb", 80, {"fp32": 64, "fp16": 8 * 64}),
        ("v100-sxm2-32gb", 80, {"fp32": 64, "fp16": 8 * 64}),
        ("a100-sxm-40gb", 108, {"fp32": 64, "tf32": 512, "bf16": 1024, "fp16": 1024}),
        ("a100-sxm-80gb", 108, {"fp32": 64, "tf32": 512, "bf16": 1024, "fp16": 1024}),
        ("h100-sxm-80gb", 132, {"fp32": 128, "tf32": 1024, "bf16": 2048, "fp16": 2048}),
        ("h100-sxm-94gb", 132, {"fp32": 128, "tf32": 1024, "bf16": 2048, "fp16": 2048}),
        ("h200-sxm-141gb", 132, {"fp32": 128, "tf32": 1024, "bf16": 2048, "fp16": 2048}),
    ],
)
def test_peaks_are_those_of_the_units_at_the_greatest_clock(name, sms, per_cycle):
    gpu = board(name)
    expected = {
        precision: 2 * sms * units * gpu.max_clock_mhz / 1e6
        for precision, units in per_cycle.items()
    }
    assert gpu.peak_tflops == pytest.approx(expected, rel=0.005)


def test_a_board_alone_is_one_node_with_it_in_an_assumed_machine():
    cluster = read_cluster("v100-pcie-32gb")
    assert (cluster.nodes, cluster.node.gpus) == (1, 1)
    assert cluster.gpu == board("mit-v100")
    around = [entry for entry in parameters(cluster) if ".gpu." not in entry["key"]]
    assert all(re.search("assumed|asked for", entry["source"]) for entry in around)


def test_the_tables_of_the_document_are_those_of_the_files():
    rows = {
        cells[0].strip("`"): [float(cell) for cell in re.findall(r"[\d.]+", " ".join(cells[1:]))]
        for line in DOC.splitlines()
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])[0].startswith("`")
    }
    for name in gpu_names():
        gpu = board(name)
        peaks = [gpu.peak_tflops[key] for key in ("fp32", "tf32", "fp16") if key in gpu.peak_tflops]
        assert rows[name] == [
            *peaks, gpu.memory_bandwidth_gb_s, gpu.idle_w, gpu.min_limit_w, gpu.max_w,
            gpu.min_clock_mhz, gpu.max_clock_mhz, gpu.knee_clock_mhz, gpu.least_voltage,
        ], name  # fmt: skip
    for name in cluster_names():
        cluster = read_cluster(name)
        node = cluster.node
        assert rows[name][-8:] == [
            cluster.nodes, node.gpus, node.link.bandwidth_gb_s, node.link.latency_us,
            cluster.network.bandwidth_gb_s, cluster.network.latency_us, node.cores,
            cluster.storage_gb_s,
        ], name  # fmt: skip


def put(folder: Path, where: str, value: object) -> str:
    """Write the example with another value; return the file."""
    part = data = yaml.safe_load(EXAMPLE)
    *outer, last = where.split(".")
    for key in outer:
        part = part[key]
    part[last] = value
    (folder / "mine.yaml").write_text(yaml.safe_dump(data))
    return str(folder / "mine.yaml")


def test_a_board_that_ships_may_be_named_in_a_file(tmp_path):
    path = put(tmp_path, "node.gpu", "h100-sxm-80gb")
    assert read_cluster(path).gpu == board("h100-sxm-80gb")


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ("node.gpu.idle_w", -5, "node.gpu.idle_w: given -5; allowed: a number > 0 (watts"),
        ("node.gpu.memory_gb", math.nan, "node.gpu.memory_gb: given NaN; allowed: a finite number"),
        ("node.gpu.knee_clock_mhz", 9e4, "allowed: min_clock_mhz <= knee_clock_mhz <= max"),
        ("node.gpus", 2.5, "node.gpus: given 2.5; allowed: a whole number >= 1"),
        ("node.colour", 1, "node.colour: unknown key; allowed: name, sources, gpus, gpu, link"),
        ("node.gpu", "../gpus/v100-pcie-32gb", "node.gpu: given"),
        ("network.sources", {}, "network: sources: none for bandwidth_gb_s, latency_us"),
    ],
)
def test_a_wrong_value_is_refused_with_its_dotted_key_and_what_is_allowed(
    tmp_path, where, value, words
):
    path = put(tmp_path, where, value)
    with pytest.raises(BadInput) as caught:
        read_cluster(path)
    line = str(caught.value)
    assert "\n" not in line
    assert words in line
    assert re.match(r":\d+: ", line.removeprefix(path))


@pytest.mark.parametrize(
    "name", ["mit", "", "MIT-V100", "one-board", "v100", "mit-v100\n", "x" * 5000, "\udcff", "a\0"]
)
def test_an_unknown_name_lists_those_that_are_known(name):
    with pytest.raises(BadInput) as caught:
        read_cluster(name)
    line = str(caught.value)
    assert "mit-v100" in line
    assert "v100-pcie-32gb" in line
    assert line.isprintable()
