"""Network namespaces with links between them: what a test does to a link happens to nobody else.

One side of each link is a namespace of its own, the client's; the other may be that of several links, the server's.
"""

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
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Link:
    """A link between two namespaces.

    Attributes:
        names: the namespace of each side.
        number: of this link among those of its server.
    """

    names: dict[Side, str]
    number: int = 0

    @property
    def device(self) -> str:
        """The link's name on both sides."""
        return f"link{self.number}"

    def address(self, side: Side) -> str:
        """The address of a side on this link."""
        return f"10.77.{self.number}.{1 if side == 'client' else 2}"

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
            nft = self.argv(side, ["nft"])
            run(*nft, "add", "table", "inet", self.device)  # one that is not there cannot be deleted
            run(*nft, "delete", "table", "inet", self.device)

    def _filter(self, side: Side, rule: str) -> None:
        nft = self.argv(side, ["nft"])
        run(*nft, "add", "table", "inet", self.device)
        run(*nft, "add", "chain", "inet", self.device, "input", "{ type filter hook input priority 0; }")
        run(*nft, "add", "rule", "inet", self.device, "input", "iifname", self.device, *rule.split())


@contextmanager
def link() -> Iterator[Link]:
    """Makes two namespaces and a link between them, as `links` does."""
    with links(1) as (made,):
        yield made


@contextmanager
def links(count: int) -> Iterator[list[Link]]:
    """Makes the namespace of a server, and so many of clients with a link to it each; they end with the block.

    Without the rights or the programs the test is skipped, unless ROTA_DEV_REQUIRE has `netns`.
    """
    for program in ("ip", "nft"):
        if shutil.which(program) is None:
            unavailable("netns", f"{program} is not installed")
    of_these = f"{os.getpid()}x{next(_numbers)}"
    server = f"rotas{of_these}"
    clients = [f"rotac{of_these}x{number}" for number in range(count)]
    made = []
    try:
        for name in (server, *clients):
            done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            if done.returncode:
                unavailable("netns", f"network namespaces cannot be made here: {done.stderr.strip()}")
            made.append(name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        found = [Link({"client": client, "server": server}, number) for number, client in enumerate(clients)]
        for each in found:
            _connect(each)
        yield found
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def _connect(link: Link) -> None:
    """Makes the link's two ends."""
    client, server, device = link.names["client"], link.names["server"], link.device
    run("ip", "link", "add", device, "netns", client, "type", "veth", "peer", "name", device, "netns", server)
    for side, name in link.names.items():
        run("ip", "-n", name, "addr", "add", f"{link.address(side)}/24", "dev", device)
        run("ip", "-n", name, "link", "set", device, "up")


def run(*argv: str) -> None:
    """Runs a command that has to work."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
