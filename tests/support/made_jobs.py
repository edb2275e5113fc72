"""Synthetic jobs: the profile of a plain net, and clusters with some ideal parts."""

from dataclasses import fields

from wattlaw.hardware.cluster import Cluster
from wattlaw.hardware.library import read_cluster
from wattlaw.study.setting import Setting
from wattlaw.workloads.profile import Kernels, WorkloadProfile
from wattlaw_simulator.simulated_job import Parameters, SimulatedJob

#: Nothing between the profile and the peaks of the hardware, and all ranks alike.
IDEAL = Parameters(
    compute_fp32=1.0, compute_tensor=1.0, bandwidth=1.0, network=1.0, overlap=1.0,
    kernel_us=0.0, launch_us=0.0, step_ms=0.0, epoch_ms=0.0, order_ns=0.0,
    step_spread=0.0, gpu_spread=0.0, run_spread=0.0,
)  # fmt: skip


def profile(**changed: object) -> WorkloadProfile:
    forward = Kernels(
        phase="forward", count=160, flops_per_sample=5e7, bytes_per_sample=1.5e6, bytes_fixed=6e5
    )
    backward = forward.model_copy(update={"phase": "backward", "count": 320.0})
    update = Kernels(
        phase="optimizer", count=6, flops_per_sample=0.0, bytes_per_sample=0.0, bytes_fixed=1e8
    )
    plain = WorkloadProfile(
        workload="plain",
        parameters=25_000_000,
        gradient_bytes=100_000_000,
        layers=50,
        flops_per_sample=24e9,
        activation_bytes_per_sample=1.2e8,
        stored_bytes_per_sample=0.0,
        input_cpu_s_per_sample=0.0,
        kernels=(forward, backward, update),
        counted="made by hand",
    )
    return plain.model_copy(update=changed)


def job(gpus: int = 1, **changed: object) -> SimulatedJob:
    """Return a job of one million samples, 64 per GPU and update, on the cluster of the MIT."""
    names = {item.name for item in fields(Setting)} & changed.keys()
    setting = Setting(gpus, **{"local_batch": 64} | {name: changed.pop(name) for name in names})
    given = {"profile": profile(), "cluster": read_cluster("mit-v100"), "samples": 1_024_000}
    return SimulatedJob(setting=setting, **given | changed)


def with_links(cluster: Cluster, **changed: float) -> Cluster:
    node = cluster.node.model_copy(update={"link": cluster.node.link.model_copy(update=changed)})
    network = cluster.network.model_copy(update=changed)
    return cluster.model_copy(update={"node": node, "network": network})
