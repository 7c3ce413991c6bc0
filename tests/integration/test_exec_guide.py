"""The guide of exec servers is true: its files are taken, its tables are those of the code, its commands run."""

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Final

from rota.slots.config import ServerSection, read_exec_config
from rota.slots.messages import EndedBy
from rota.slots.service import Limits
from rota.slots.template import KINDS
from tests.integration.exec_bench import bench, pieces
from tests.pages import ROOT, SOURCE, blocks_of

PAGE: Final = ROOT / "docs/guide/exec-servers.md"
OPERATING: Final = ROOT / "docs/OPERATING.md"
LOGGING: Final = ("commands", "exchange", "execserver", "keepers", "server", "session", "state")


def config() -> str:
    return "\n".join(block.text for block in blocks_of(PAGE) if block.language == "toml")


def first_cells(heading: str, page: Path = PAGE) -> dict[str, str]:
    """The first and the second cell of each row of a section's table."""
    section = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^|]+?)`[^|]*\|([^|]*)\|", section.replace(r"\|", "/"), flags=re.MULTILINE)
    return {first: second.strip() for first, second in rows}


async def test_its_file_is_taken_and_a_service_of_it_runs(tmp_path: Path) -> None:
    services = read_exec_config(config()).services
    filled = services["transcode"].template.fill(["--height", "480"], scratch="/s")
    assert "scale=-2:480" in filled.argv
    assert services["ffprobe"].template.fill(["show_format"], scratch="/s").argv[-2:] == ("show_format", "pipe:0")
    async with bench(tmp_path, config()) as b:
        source = b.pipes.source(pieces(b"12345"))
        receipt = await b.run("count", stdin=source.url("127.0.0.1"))
        assert (receipt.ok, receipt.stdout_prefix) == (True, "5\n.\n..\n")


def test_its_tables_are_those_of_the_code() -> None:
    limits = Limits()
    said = first_cells("Services")
    assert float(said["timeout_s"]) == limits.timeout_s
    assert float(said["stall_s"]) == limits.stall_s
    assert float(said["grace_s"]) == limits.grace_s
    assert said["stdout_max"] == f"{limits.stdout_bytes_max // 1024**3} GiB"
    keys = {"host": "listen", "port": "listen", "tls_key": "tls_cert"}
    assert set(first_cells("The server")) - {"key"} == {keys.get(at.name, at.name) for at in fields(ServerSection)}
    assert {kind.split()[0] for kind in first_cells("Arguments")} == set(KINDS.split(", "))
    assert set(first_cells("Receipts")) - {"ended_by"} == {ended_by.value for ended_by in EndedBy}


def test_the_table_of_log_events_is_that_of_the_code() -> None:
    found = {}
    for path in (SOURCE / "slots" / "io" / f"{name}.py" for name in LOGGING):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(ast.Name("log"), level), args=[ast.Constant(str(event))]):
                    found[event] = "error" if level == "exception" else level
    assert first_cells("Logs of exec servers", OPERATING) == found
