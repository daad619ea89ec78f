"""Tests and doctests leave the user's cache alone: they have one of their own for a session."""

import os
import tempfile

# Some virtual machines announce AMX and then kill the process that uses it; tests need no such speed.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Tests share the cores among them, and fork: a child of a process with OpenMP's threads hangs.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        return  # processes of pytest-xdist share the folder of the one that started them
    folder = tempfile.TemporaryDirectory(prefix="softwarp-tests-", ignore_cleanup_errors=True)
    os.environ["SOFTWARP_CACHE"] = folder.name
    os.environ.pop("SOFTWARP_WEIGHTS", None)
    config.add_cleanup(folder.cleanup)
