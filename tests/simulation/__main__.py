"""`./dev sim [flow|slots|runners] [SEED] [--count N]`: plays histories and says how each went; a seed that breaks a
rule repeats it.

Without a word it is servers over one database; with `flow`, the same with passes, batches, families, limits and pauses;
with `slots`, fleets of clients and exec servers; with `runners`, gateways, runners and engines.
"""

import argparse
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.simulation import fleet_checks, flow, history, runner_checks
from tests.simulation.checks import Broken

RUNS: Final[Mapping[str, Callable[[int], Any]]] = {
    "flow": flow.run, "slots": fleet_checks.run, "runners": runner_checks.run,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev sim", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="the first seed; drawn where none is given")
    parser.add_argument("--count", type=int, default=None, help="how many histories (1 for a seed, else 200)")
    word = next(iter(sys.argv[1:2]), "")
    run = RUNS.get(word, history.run)
    options = parser.parse_args(sys.argv[2:] if word in RUNS else None)
    first = secrets.randbelow(10**12) if options.seed is None else options.seed
    count = options.count or (200 if options.seed is None else 1)
    for seed in range(first, first + count):
        try:
            told = run(seed)
        except Broken as error:
            print(
                f"seed {seed}: {error}\nReplay it with ./dev sim {word + ' ' if word in RUNS else ''}{seed}",
                file=sys.stderr,
            )
            return 1
        if count == 1:
            print(
                f"seed {seed}: {told.jobs} jobs, {told.starts} runs, {told.faults} faults, "
                f"{told.virtual_s:.0f} virtual seconds: every invariant held"
            )
    if count > 1:
        print(f"seeds {first} to {first + count - 1}: every invariant held in {count} histories")
    return 0


if __name__ == "__main__":
    sys.exit(main())
