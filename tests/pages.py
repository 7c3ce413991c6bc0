"""The pages of the documentation, and the blocks of code in them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "rota"
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
GUIDES: Final = sorted(ROOT.glob("docs/guide/*.md"))
PROGRAM_NAME: Final = re.compile(r"# (\w+\.py)\n")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code in a page."""

    language: str
    text: str
    line: int

    @property
    def program(self) -> str | None:
        """The file that this block is, if it is a program."""
        found = PROGRAM_NAME.match(self.text) if self.language == "python" else None
        return found and found[1]


def blocks_of(page: Path, *, heading: str | None = None) -> list[Block]:
    """The blocks of a page, or of the one section with this heading, in their order."""
    text = page.read_text(encoding="utf-8")
    first, last = 0, len(text)
    if heading is not None:
        found = re.search(rf"^{re.escape(heading)}$", text, flags=re.MULTILINE)
        assert found, f"{name_of(page)} has no section '{heading}'"
        first = found.end()
        end = re.compile(r"^## ", flags=re.MULTILINE).search(text, first)
        last = end.start() if end else last
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        if first <= found.start() < last
    ]
