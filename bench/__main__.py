"""`python -m bench NAME [OPTIONS]`, which is what `./dev bench NAME` runs. Each NAME is a package of this folder."""

import importlib
import sys

NAMES = ("queue", "slots", "runners")


def main() -> int:
    """Runs the measurement that is named first; the other arguments are its own."""
    name, *args = sys.argv[1:] or ["--help"]
    if name in NAMES:
        module = importlib.import_module(f"bench.{name}.main")
        status: int = module.main(args)
        return status
    shown = sys.stdout if name in ("-h", "--help") else sys.stderr
    print(f"usage: python -m bench NAME [OPTIONS]\nNAME is one of: {', '.join(NAMES)}", file=shown)
    return 0 if shown is sys.stdout else 2


if __name__ == "__main__":
    raise SystemExit(main())
