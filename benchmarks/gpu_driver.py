"""The few calls of the CUDA driver that benchmarks need beside JAX, by ctypes."""

import ctypes
import statistics

# enum CUmemPool_attribute
_RESERVED_CURRENT = 5
_RESERVED_HIGH = 6


class Driver:
    """The first visible GPU, in the context that JAX uses."""

    def __init__(self, library: str = "libcuda.so.1"):
        self._library = ctypes.CDLL(library)
        device = ctypes.c_int()
        context = ctypes.c_void_p()
        self._pool = ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        # What cudaMallocAsync takes from: the scratch of a growing index.
        self._call("cuDeviceGetDefaultMemPool", ctypes.byref(self._pool), device)

    def _call(self, name: str, *operands: object) -> None:
        error = getattr(self._library, name)(*operands)
        if error != 0:
            raise RuntimeError(f"{name} failed with CUDA error {error}")

    def used_bytes(self) -> int:
        """Memory of the card in use, by anybody."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuCtxSynchronize")
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def pool_bytes(self) -> tuple[int, int]:
        """What the device's memory pool holds: now, and at most since forget_peak."""
        values = []
        for attribute in (_RESERVED_CURRENT, _RESERVED_HIGH):
            value = ctypes.c_uint64()
            self._call(
                "cuMemPoolGetAttribute", self._pool, ctypes.c_int(attribute), ctypes.byref(value)
            )
            values.append(value.value)
        return values[0], values[1]

    def forget_peak(self) -> None:
        """The peak of pool_bytes starts anew."""
        zero = ctypes.c_uint64(0)
        self._call(
            "cuMemPoolSetAttribute", self._pool, ctypes.c_int(_RESERVED_HIGH), ctypes.byref(zero)
        )

    def copy_rate(self, num_bytes: int = 2 << 30, repeats: int = 10) -> float:
        """Bytes a second, read and written, of a copy on the device; median, by events."""
        source, target = ctypes.c_uint64(), ctypes.c_uint64()
        start, stop = ctypes.c_void_p(), ctypes.c_void_p()
        size, stream = ctypes.c_size_t(num_bytes), ctypes.c_void_p()
        times = []
        for address in (source, target):
            self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        for event in (start, stop):
            self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        for repeat in range(3 + repeats):
            self._call("cuEventRecord", start, stream)
            self._call("cuMemcpyDtoDAsync_v2", target, source, size, stream)
            self._call("cuEventRecord", stop, stream)
            self._call("cuEventSynchronize", stop)
            ms = ctypes.c_float()
            self._call("cuEventElapsedTime", ctypes.byref(ms), start, stop)
            if repeat >= 3:
                times.append(ms.value)
        for event in (start, stop):
            self._call("cuEventDestroy_v2", event)
        for address in (source, target):
            self._call("cuMemFree_v2", address)
        return 2 * num_bytes / statistics.median(times) * 1e3
