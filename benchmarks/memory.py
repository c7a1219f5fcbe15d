"""Resident memory of this process, as Linux counts it."""

import pathlib


def reset_peak() -> None:
    """Forgets the high-water mark, so that the next peak belongs to what runs next."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def resident_mib() -> float:
    """Returns the memory resident now, in MiB."""
    return _status("VmRSS")


def peak_mib() -> float:
    """Returns the high-water mark since the start or the last reset_peak, in MiB."""
    return _status("VmHWM")


def _status(field: str) -> float:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"/proc/self/status has no {field}; this needs Linux.")
