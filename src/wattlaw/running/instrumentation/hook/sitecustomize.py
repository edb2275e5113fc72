"""Python imports this file at its start, because its folder is the first of PYTHONPATH.

If WATTLAW_STEPS names a folder, it loads the package ``_wattlaw`` once the script imports torch.
Then the user's own sitecustomize, the next one on the path, runs as without this one. Nothing of
wattlaw is imported: the interpreter may be another one, of Python 3.9 or later.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "_wattlaw"
#: Modules of a script, and the function of ``_wattlaw`` that gets each after its import.
_OBSERVED = {
    "torch.optim.optimizer": "step_hook.count_steps",
    "torch.utils.data.dataloader": "loaders.count_samples",
    "torch.amp.autocast_mode": "model_facts.see_autocast",
    "torch.nn.parallel.distributed": "model_facts.see_ddp",
    "torch.nn.parallel.data_parallel": "model_facts.see_data_parallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "model_facts.see_fsdp",
    "torch.distributed.fsdp._fully_shard._fsdp_state": "model_facts.see_fully_shard",
    "torch.distributed.device_mesh": "model_facts.see_meshes",
    "torch.distributed.pipelining.stage": "model_facts.see_stages",
    "torch.distributed.pipelining.schedules": "model_facts.see_schedules",
    "torch.distributed.optim.zero_redundancy_optimizer": "model_facts.see_zero1",
    "torch.utils.checkpoint": "model_facts.see_checkpointing",
    "deepspeed.runtime.engine": "model_facts.see_deepspeed",
    "transformers.modeling_utils": "model_facts.see_transformers",
    "megatron.core.optimizer.distrib_optimizer": "model_facts.see_zero1",
}


def _watch_imports() -> None:
    """Have the import of an observed module passed on by the finder that finds it.

    ``sys.meta_path`` stays as it is: scripts iterate over it, change it and count its finders.
    """
    original: Any = PathFinder.find_spec.__func__  # type: ignore[attr-defined]

    def find_spec(cls: Any, fullname: str, path: Any = None, target: Any = None) -> Any:
        spec = original(cls, fullname, path, target)
        if fullname in _OBSERVED and spec is not None and spec.loader is not None:
            _call_after(spec.loader, fullname)
        return spec

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(find_spec, name, getattr(original, name))
    find_spec.__annotations__ = {}
    PathFinder.find_spec = classmethod(find_spec)  # type: ignore[assignment,method-assign]


def _call_after(loader: Any, name: str) -> None:
    """Have the module that a loader executes next passed to a function; then it is as before."""
    function = _OBSERVED[name]

    def exec_module(module: Any) -> None:
        if module.__name__ != name:  # a loader of several modules, as of a zip file
            execute(module)
            return
        if loader.__dict__.get("exec_module") is exec_module:
            del loader.exec_module
        execute(module)
        try:
            part, _, what = function.rpartition(".")
            recorder = _load("step_hook").recorder
            getattr(_load(part), what)(module, recorder)
        except Exception as error:  # the script must not notice
            _record_failure(function, error)

    try:
        execute = loader.exec_module
        loader.exec_module = exec_module
    except Exception as error:  # a loader that cannot be changed
        _record_failure(function, error)


def _load(part: str) -> Any:
    from importlib import import_module

    if _PACKAGE not in sys.modules:
        from importlib.util import module_from_spec, spec_from_file_location

        spec: Any = spec_from_file_location(_PACKAGE, os.path.join(_HERE, _PACKAGE, "__init__.py"))
        package = sys.modules[_PACKAGE] = module_from_spec(spec)
        spec.loader.exec_module(package)
    return import_module(f"{_PACKAGE}.{part}")


def _record_failure(function: str, error: Exception) -> None:
    try:
        _load("step_hook").recorder.fail(function, error)
    except Exception:  # such as in a Python that is too old
        pass


def _next_sitecustomize() -> None:
    """Run the user's own sitecustomize in place of this module; its errors are the user's."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:  # as without this one; Python ignores it at its start
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    from importlib.util import module_from_spec

    module = sys.modules["sitecustomize"] = module_from_spec(spec)
    spec.loader.exec_module(module)


if os.environ.get("WATTLAW_STEPS"):
    try:
        _watch_imports()
    except Exception:  # another implementation of Python
        pass
_next_sitecustomize()
