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
    "torch.optim.optimizer": "steps.count_steps",
    "torch.utils.data.dataloader": "loaders.count_samples",
    "torch.amp.autocast_mode": "model.see_autocast",
    "torch.nn.parallel.distributed": "model.see_ddp",
    "torch.nn.parallel.data_parallel": "model.see_data_parallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "model.see_fsdp",
    "torch.distributed.fsdp._fully_shard._fsdp_state": "model.see_fully_shard",
    "torch.distributed.pipelining.stage": "model.see_pipeline",
    "deepspeed.runtime.engine": "model.see_deepspeed",
}


class _AfterImport:
    """A finder of modules: it finds what the others find, and sees the import's end."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _OBSERVED:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                _call_after(spec.loader, _OBSERVED[name])
                return spec
        return None


def _call_after(loader: Any, function: str) -> None:
    """Have the module that a loader executes next passed to a function; then it is as before."""

    def exec_module(module: Any) -> None:
        if "exec_module" in loader.__dict__:
            del loader.exec_module
        execute(module)
        try:
            part, _, name = function.rpartition(".")
            recorder = _load("steps").recorder
            getattr(_load(part), name)(module, recorder)
        except Exception as error:  # the script must not notice
            _record_failure(function, error)

    try:
        execute = loader.exec_module
        loader.exec_module = exec_module
    except Exception as error:  # a loader that cannot be changed
        _record_failure(function, error)


def _load(part: str) -> Any:
    """Import a module of the package, whose folder is not on the path."""
    from importlib import import_module

    if _PACKAGE not in sys.modules:
        from importlib.util import module_from_spec, spec_from_file_location

        spec: Any = spec_from_file_location(_PACKAGE, os.path.join(_HERE, _PACKAGE, "__init__.py"))
        package = sys.modules[_PACKAGE] = module_from_spec(spec)
        spec.loader.exec_module(package)
    return import_module(f"{_PACKAGE}.{part}")


def _record_failure(function: str, error: Exception) -> None:
    try:
        _load("steps").recorder.fail(function, error)
    except Exception:  # such as in a Python that is too old
        pass


def _next_sitecustomize() -> None:
    """Run the user's own sitecustomize in place of this module; its errors are the user's."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("WATTLAW_STEPS"):
    sys.meta_path.insert(0, _AfterImport())
_next_sitecustomize()
