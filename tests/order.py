"""The order in which the processes of a run take the files of tests: the long ones first.

A file is run by one process. A long one that is taken last leaves the other processes with nothing to do.
"""

from typing import Final

LONG: Final = (
    "simulation/test_histories.py",
    "faults/test_worker_faults.py",
    "integration/test_readme.py",
    "faults/test_gateway_replicas.py",
    "integration/test_bench.py",
    "faults/test_ends_of_processes.py",
    "faults/test_slot_matrix.py",
    "faults/test_wardens.py",
    "integration/test_media.py",
    "integration/test_isolation.py",
    "integration/test_demo.py",
    "integration/test_demo_runners.py",
    "conformance/test_side_by_side.py",
    "faults/test_slots_flat.py",
    "faults/test_twenty_thousand.py",
    "faults/test_twenty_thousand_with_bad_jobs.py",
    "faults/test_twenty_thousand_on_bad_lines.py",
    "runners/test_argv_on_ffmpeg.py",
    "integration/test_worker.py",
    "integration/test_cli_programs.py",
    "integration/test_runners_whole.py",
    "integration/test_cli_exec.py",
)
"""Those that take longest, by CPU and by waiting, the longest first. One that is missing costs time, nothing else."""
FOLDERS: Final = (
    "faults",
    "integration",
    "conformance",
    "runners",
    "simulation",
    "property",
    "unit",
    "protocol",
    "tidy",
)
"""Where the others stand, from files of many seconds to files of none."""


def rank(file: str) -> tuple[int, int]:
    """Where a file of tests stands: lower is earlier.

    Args:
        file: its path below `tests`, as `unit/test_ids.py`.
    """
    folder = file.partition("/")[0]
    return (
        LONG.index(file) if file in LONG else len(LONG),
        FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS),
    )
