"""GPU performance monitoring: what an NVIDIA GPU does, between two readings."""

from typing import Any, Self

import pynvml

from wattlaw.measure.devices.nvidia.nvml import query, valid

_GPM_METRICS = {
    "sm_occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "tensor_util": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_util": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
#: A share of a short time can be a little above 100 %.
_MAX_GPM_PERCENT = 110.0


class Gpm:
    """GPU performance monitoring (Hopper and newer): activity between two readings."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(_GPM_METRICS)
        for place, metric in enumerate(_GPM_METRICS.values()):
            self._request.metrics[place].metricId = metric
        self._count = 0

    @classmethod
    def open(cls, handle: Any) -> Self | None:
        support = query(pynvml.nvmlGpmQueryDeviceSupport, handle)
        return cls(handle) if support is not None and support.isSupportedDevice else None

    def read(self) -> dict[str, float]:
        """Return the means since the previous reading, as shares; nothing the first time."""
        new = self._samples[self._count % 2]
        if query(pynvml.nvmlGpmSampleGet, self._handle, new) is None:
            return {}
        self._count += 1
        if self._count < 2:
            return {}
        self._request.sample1, self._request.sample2 = self._samples[self._count % 2], new
        if query(pynvml.nvmlGpmMetricsGet, self._request) is None:
            return {}
        return {
            name: metric.value * 1e-2
            for name, metric in zip(_GPM_METRICS, self._request.metrics, strict=False)
            if metric.nvmlReturn == pynvml.NVML_SUCCESS
            and valid(metric.value, _MAX_GPM_PERCENT) is not None
        }

    def close(self) -> None:
        while self._samples:
            query(pynvml.nvmlGpmSampleFree, self._samples.pop())
