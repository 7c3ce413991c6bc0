"""Which job may go to which runner."""

import msgspec
import pytest

from rota.runners.matching import Needs, Queued, belongs, choose, failure_class, lacks, offered, refuses, target_of
from rota.runners.messages import Capabilities, Requires

CAPABILITIES = Capabilities(
    protocol_version="1.0", agent_version="1", os="linux", arch="amd64", slots=2, container="podman",
    runtime_image_digest="sha256:aa", ffmpeg_version="8.0", fontset_version="2026.2",
    job_types=("video.compile", "remotion.workspace-session"), max_output_bytes=1000,
)  # fmt: skip
NEEDS = Needs("CloudPool", "org-1", "video.compile", Requires(), 1000)


@pytest.mark.parametrize(
    ("target", "kind", "org_id", "may"),
    [
        ("CloudPool", "CloudPool", None, True),
        ("OrgRunner", "CloudPool", None, False),
        ("OrgRunner", "Desktop", "org-1", True),
        ("OrgRunner", "Desktop", "org-2", False),
        ("CloudPool", "Desktop", "org-1", False),
        ("Moon", "Desktop", "org-1", False),
        ("CloudPool", "Unknown", None, False),
    ],
)
def test_no_job_crosses_to_another_target_or_organisation(
    target: str, kind: str, org_id: str | None, *, may: bool
) -> None:
    assert belongs(Needs(target, "org-1", "video.compile", Requires(), 1), kind=kind, org_id=org_id) is may


@pytest.mark.parametrize(
    ("needs", "lacking"),
    [
        (NEEDS, None),
        (Needs("CloudPool", "o", "video.analyze.extract", Requires(), 1), "job type video.analyze.extract"),
        (Needs("CloudPool", "o", "video.compile", Requires(), 1001), "outputs of 1,001 bytes"),
        (Needs("CloudPool", "o", "video.compile", Requires(fontset_version="2026.2"), 1), None),
        (Needs("CloudPool", "o", "video.compile", Requires(fontset_version="2026.10"), 1), "font set 2026.10 or later"),
        (Needs("CloudPool", "o", "video.compile", Requires(runtime_image_digest="sha256:aa"), 1), None),
        (Needs("CloudPool", "o", "video.compile", Requires(runtime_image_digest="sha256:bb"), 1), "runtime image"),
    ],
)
def test_what_a_runner_lacks_is_named(needs: Needs, lacking: str | None) -> None:
    found = lacks(needs, CAPABILITIES)
    assert (found is None) if lacking is None else (found is not None and lacking in found)


def test_without_a_container_there_is_no_workspace_whatever_is_claimed() -> None:
    assert offered(msgspec.structs.replace(CAPABILITIES, container="none")) == ("video.compile",)
    assert offered(CAPABILITIES) == CAPABILITIES.job_types


def test_on_the_pool_the_organisation_with_the_fewest_jobs_goes_first() -> None:
    """Fair share, within a priority; then the oldest, then the id."""
    queued = [
        Queued(job_id, Needs("CloudPool", org, "video.compile", Requires(), 1), priority, at)
        for job_id, org, priority, at in (
            ("a1", "a", 0, 1.0), ("a2", "a", 0, 2.0), ("a3", "a", 0, 3.0), ("b1", "b", 0, 9.0), ("c1", "c", 5, 10.0),
        )
    ]  # fmt: skip
    chosen = choose(
        queued, kind="CloudPool", org_id=None, capabilities=CAPABILITIES, slots=9, pool_running={"a": 1}, pool_cap=2
    )
    assert [job.job_id for job in chosen] == ["c1", "b1", "a1"]


def test_words_have_their_meaning() -> None:
    assert target_of("CloudPool") == "CloudPool"
    assert target_of("Desktop") == "OrgRunner"
    assert refuses("capability_mismatch") and not refuses("busy") and not refuses("on_battery")
    assert [failure_class(word) for word in ("input", "runner", "platform", "")] == [
        "input",
        "runner",
        "runner",
        "runner",
    ]
