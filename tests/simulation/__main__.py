"""`./dev sim [flow|slots|runners] [SEED] [--count N]`: plays histories and says how each went; a seed that breaks a
rule repeats it.

Without a word it is servers over one database; with `flow`, the same with passes, batches, families, limits and pauses;
with `slots`, fleets of clients and exec servers; with `runners`, gateways, runners and engines.
"""

import argparse
import secrets
import sys
from typing import Final

from tests.simulation.checks import Broken
from tests.simulation.plays import FLEETS, FLOW, RUNNERS, SERVERS

PLAYS: Final = {play.word: play for play in (SERVERS, FLOW, FLEETS, RUNNERS)}


def main() -> int:
    usage = f"./dev sim [{'|'.join(filter(None, PLAYS))}] [SEED] [--count N]"
    parser = argparse.ArgumentParser(prog="./dev sim", usage=usage, description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="the first seed; drawn where none is given")
    parser.add_argument("--count", type=int, default=None, help="how many histories (1 for a seed, else 200)")
    word = next(iter(sys.argv[1:2]), "")
    play = PLAYS.get(word, SERVERS)
    options = parser.parse_args(sys.argv[2:] if play.word else None)
    first = secrets.randbelow(10**12) if options.seed is None else options.seed
    count = options.count or (200 if options.seed is None else 1)
    for seed in range(first, first + count):
        try:
            told = play.run(seed)
        except Broken as error:
            print(play.told(seed, error), file=sys.stderr)
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
