"""Two network namespaces with a link between them: what a test does to the link happens to nobody else."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from tests.postgres_servers import unavailable

Side = Literal["client", "server"]
ADDRESSES: dict[Side, str] = {"client": "10.77.0.1", "server": "10.77.0.2"}
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Link:
    """A link between two namespaces.

    Attributes:
        names: the namespace of each side.
    """

    names: dict[Side, str]

    def argv(self, side: Side, argv: Sequence[str]) -> list[str]:
        """A command line that runs on this side."""
        return ["ip", "netns", "exec", self.names[side], *argv]

    def drop(self, *sides: Side) -> None:
        """What comes in on these sides vanishes from now on, without a word."""
        for side in sides:
            self._filter(side, "drop")

    def reset(self, *sides: Side) -> None:
        """What comes in on these sides is answered with a reset."""
        for side in sides:
            self._filter(side, "meta l4proto tcp reject with tcp reset")

    def heal(self) -> None:
        """Ends what `drop` and `reset` began."""
        for side in self.names:
            run(*self.argv(side, ["nft", "flush", "ruleset"]))

    def _filter(self, side: Side, rule: str) -> None:
        nft = self.argv(side, ["nft"])
        run(*nft, "add", "table", "inet", "cut")
        run(*nft, "add", "chain", "inet", "cut", "input", "{ type filter hook input priority 0; }")
        run(*nft, "add", "rule", "inet", "cut", "input", "iifname", "link0", *rule.split())


@contextmanager
def link() -> Iterator[Link]:
    """Makes both namespaces and the link; they end with the block.

    Without the rights or the programs the test is skipped, unless ROTA_DEV_REQUIRE has `netns`.
    """
    for program in ("ip", "nft"):
        if shutil.which(program) is None:
            unavailable("netns", f"{program} is not installed")
    number = f"{os.getpid()}x{next(_numbers)}"
    names: dict[Side, str] = {"client": f"rotac{number}", "server": f"rotas{number}"}
    made = []
    try:
        for name in names.values():
            done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            if done.returncode:
                unavailable("netns", f"network namespaces cannot be made here: {done.stderr.strip()}")
            made.append(name)
        client, server = names["client"], names["server"]
        run("ip", "link", "add", "link0", "netns", client, "type", "veth", "peer", "name", "link0", "netns", server)
        for side, name in names.items():
            run("ip", "-n", name, "addr", "add", f"{ADDRESSES[side]}/24", "dev", "link0")
            run("ip", "-n", name, "link", "set", "link0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield Link(names)
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def run(*argv: str) -> None:
    """Runs a command that has to work."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
