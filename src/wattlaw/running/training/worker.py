"""One rank of a run: ``python -m wattlaw.running.training.worker RUN_FOLDER ATTEMPT``."""

import contextlib
import gc
import multiprocessing
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from wattlaw.common import machine, processes
from wattlaw.common.errors import BadInput
from wattlaw.common.files import write_text
from wattlaw.measure.devices.inventory import visible_gpu_ids
from wattlaw.running.instrumentation.hook._wattlaw.model_facts import peak_memory, software
from wattlaw.running.training import failures, preemption
from wattlaw.running.training.environment import AGENT_PID, DISK_FULL, MIG_INSTANCES
from wattlaw.store.record import Facts, Parallelism
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import RunSpec
from wattlaw.workloads import catalogue

if TYPE_CHECKING:
    from torch import nn

    from wattlaw.running.training.ranks import Ranks

#: Of a setting, which are facts of its run.
_SIZES = ("tp", "pp", "cp", "ep", "virtual_stages", "sharding", "checkpointing")
_PACKAGES = (
    "wattlaw", "torch", "torchvision", "transformers", "tokenizers", "torch-geometric",
    "nvidia-physicsnemo", "h5py", "pillow", "numpy", "scikit-learn",
    "nvidia-nccl-cu13",
)  # fmt: skip


def main() -> int:
    processes.end_with_parent(int(os.environ[AGENT_PID]))
    folder, attempt = RunFolder(Path(sys.argv[1])), int(sys.argv[2])
    try:
        with preemption.listening():
            _train(folder, attempt)
    except BaseException as error:  # with SystemExit: no rank ends in order before the others
        _abort(folder.live(attempt), error)
    return 0


def _abort(live: Path, error: BaseException) -> NoReturn:
    """Write why this rank failed, and end the process at once.

    An orderly end of the process group, or of the interpreter, could wait for ranks that wait for
    this one in a collective. The kernel closes the connections.
    """
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    try:
        failures.write_error(live, int(os.environ.get("RANK", "0")), error)
    except OSError as write_error:
        if failures.disk_full_error(write_error):
            code = DISK_FULL
    with contextlib.suppress(OSError):  # the traceback may not fit on the disk
        traceback.print_exception(error)
        sys.stdout.flush()
    for loader in multiprocessing.active_children():
        loader.kill()
    os._exit(code & 0xFF or 1)


def _train(folder: RunFolder, attempt: int) -> None:
    with processes.collector_paused():
        import torch
        import torch._dynamo  # otherwise the first optimizer imports it

        from wattlaw.common import registry
        from wattlaw.running.training import flops
        from wattlaw.running.training.loop import Training
        from wattlaw.running.training.ranks import process_group
        from wattlaw.running.training.shared_models import is_shared, new_model
        from wattlaw.store.live import open_windows
        from wattlaw.workloads.workload import DATA_CACHE

    record = folder.read()
    if record is None:
        raise BadInput(f"{folder.record_path}: not there")
    live, spec = folder.live(attempt), record.spec
    os.environ.setdefault(DATA_CACHE, str(folder.data_cache_path))
    metric = registry.load(catalogue.GROUP, spec.workload.name).metric
    workload = catalogue.build(spec.workload)
    with process_group(spec.setting.tp) as ranks:
        torch.manual_seed(record.seed)
        model = new_model(workload, spec.setting, ranks)
        training = Training(workload, model, spec, record.seed, ranks)
        windows = None
        if ranks.local_rank == 0:
            whole = model
            if is_shared(spec.setting):
                with torch.device("meta"):
                    whole = workload.model()
            facts = _facts(ranks, model, spec).model_copy(
                update={
                    "metric": metric,
                    "flops_per_sample": flops.flops_per_sample(workload, whole, training.data),
                    "loader_workers": training.loader.workers,
                    "dataset_samples": len(training.data),
                }
            )
            write_text(live / f"facts.{ranks.host}.json", facts.model_dump_json())
            windows = open_windows(live, ranks.host)
        training.run(windows, metric, folder, live)
        own = peak_memory([] if ranks.gpu is None else [ranks.device])
        own_bytes = own.get("peak_memory_bytes", own.get("peak_resident_bytes", 0))
        peak_bytes = max(ranks.all_gather(own_bytes))
        if windows is not None:
            windows.close()
            facts = facts.model_copy(update={"peak_memory_bytes": peak_bytes or None})
            write_text(live / f"facts.{ranks.host}.json", facts.model_dump_json())
        del training, model  # gloo may abort at exit when a model outlives the process group
        gc.collect()


def _facts(ranks: "Ranks", model: "nn.Module", spec: RunSpec) -> Facts:
    import torch

    setting = spec.setting
    kind: Parallelism = "ddp" if ranks.world > 1 else "none"
    if setting.tp > 1:
        kind = "tensor"
    elif setting.sharding != "none":
        kind = "fsdp"
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hardware, device_ids, gpu_memory_bytes = machine.hardware(), ["host"], None
    if ranks.gpu is not None:
        hardware = ranks.gpu.get_device_name(ranks.device)
        gpu_memory_bytes = ranks.gpu.get_device_properties(ranks.device).total_memory
        instances = os.environ.get(MIG_INSTANCES)
        if instances is not None:
            device_ids = instances.split(",")[: ranks.local_world]
        elif ranks.device.type == "cuda" and not torch.version.hip:
            devices = map(torch.cuda.get_device_properties, range(ranks.local_world))
            device_ids = [f"GPU-{device.uuid}" for device in devices]
        else:  # torch's UUIDs are others; the GPUs are the visible ones in their order
            device_ids = visible_gpu_ids()[: ranks.local_world]
    work, accumulation = catalogue.work(spec.workload), spec.gradient_accumulation
    return Facts(
        hosts=(ranks.host,),
        hardware=hardware,
        device_ids=tuple(device_ids),
        parameters=sum(parameter.numel() for parameter in trained),
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in trained),
        gpu_memory_bytes=gpu_memory_bytes,
        threads_per_worker=torch.get_num_threads(),
        world_size=ranks.world,
        backend=torch.distributed.get_backend(),
        parallelism=kind,
        **{name: getattr(setting, name) for name in _SIZES},
        dp=ranks.copies,
        gradient_accumulation=accumulation,
        micro_batch=-(-(spec.global_batch or 0) // (ranks.copies * accumulation)) or None,
        tokens_per_sample=work.tokens_per_sample if work is not None else None,
        network=getattr(catalogue.validated(spec.workload), "network", None),
        workers_cooperate=True,
        software=software() | machine.software(_PACKAGES),
    )


if __name__ == "__main__":
    sys.exit(main())
