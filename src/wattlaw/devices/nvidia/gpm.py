"""GPU performance monitoring (Hopper and newer): occupancy and activity, without privileges."""

from typing import Any, Self

import pynvml

from wattlaw.devices.nvidia.driver import known, query

_METRICS = {
    "sm_occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "tensor_util": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_util": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
#: A share of a short time is now and then a little above 100 %.
_MOST_PERCENT = 110.0


class Gpm:
    """The metrics of one board between two readings."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        self._asked = pynvml.c_nvmlGpmMetricsGet_t()
        self._asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._asked.numMetrics = len(_METRICS)
        for place, metric in enumerate(_METRICS.values()):
            self._asked.metrics[place].metricId = metric
        self._count = 0

    @classmethod
    def open(cls, handle: Any) -> Self | None:
        """Return the metrics of a board that has them, else None."""
        told = query(pynvml.nvmlGpmQueryDeviceSupport, handle)
        return cls(handle) if told is not None and told.isSupportedDevice else None

    def read(self) -> dict[str, float]:
        """Return the means since the reading before, as shares; nothing the first time."""
        new = self._samples[self._count % 2]
        if query(pynvml.nvmlGpmSampleGet, self._handle, new) is None:
            return {}
        self._count += 1
        if self._count < 2:
            return {}
        self._asked.sample1, self._asked.sample2 = self._samples[self._count % 2], new
        if query(pynvml.nvmlGpmMetricsGet, self._asked) is None:
            return {}
        told = zip(_METRICS, self._asked.metrics, strict=False)
        return {
            name: metric.value * 1e-2
            for name, metric in told
            if metric.nvmlReturn == pynvml.NVML_SUCCESS
            and known(metric.value, _MOST_PERCENT) is not None
        }

    def close(self) -> None:
        """Free what the driver allocated."""
        while self._samples:
            query(pynvml.nvmlGpmSampleFree, self._samples.pop())
