"""Links in the pages lead somewhere, and the pages the README promises exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchor_of(heading: str) -> str:
    """The anchor that web views of Markdown give a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return kept.replace(" ", "-")


def anchors(path: Path) -> set[str]:
    without_code = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    return {anchor_of(heading.strip()) for heading in re.findall(r"^#+ (.+)$", without_code, flags=re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = page if not file else (page.parent / file).resolve()
        assert path.exists(), f"{name_of(page)} links to {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_line_of_a_table_is_shown_in_one(page: Path) -> None:
    """A line that stands behind an empty one, or has other cells than its heading, is shown as text or cut."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        head, *rows = [len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()]
        assert re.fullmatch(r"\|(?::?-+:?\|)+", block.splitlines()[1] if rows else ""), f"no heading: {block[:80]}"
        assert set(rows) == {head}, f"a line with other cells than its heading: {block[:80]}"


@pytest.mark.parametrize(
    "page",
    [
        "README.md", "CHANGELOG.md", "LICENSE", "docs/ARCHITECTURE.md", "docs/GLOSSARY.md", "docs/STYLE.md",
        "docs/HACKING.md", "docs/OPERATING.md", "docs/guide/first-job.md", "docs/guide/deploying.md",
        "docs/adr/README.md", "bench/README.md",
    ],
)  # fmt: skip
def test_each_page_is_there(page: str) -> None:
    assert (ROOT / page).is_file()


def test_each_decision_is_in_the_index() -> None:
    index = (ROOT / "docs/adr/README.md").read_text()
    numbers = re.findall(r"^\| (\d{4}) \|", index, flags=re.MULTILINE)
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
    for page in (ROOT / "docs/adr").glob("[0-9]*.md"):
        assert f"({page.name})" in index, f"{page.name} is not in the index"
        for heading in ("Status", "Context", "Decision", "Consequences", "Alternatives"):
            assert re.search(rf"^## {heading}", page.read_text(), flags=re.MULTILINE), f"{page.name}: {heading}"
