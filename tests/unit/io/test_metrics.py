"""The text of metrics, and who may ask for it."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rota.errors import SettingsError
from rota.io.families import Family, Sample
from rota.io.metrics import MetricsServer, render

ODD = 'a "kind"\\ with\nall, {that}=hurts \\n ü'


def parsed(*families: Family, prefix: str = "rota") -> dict[str, float]:
    """The values by name and labels, as a scraper reads them."""
    text, _ = render(families, prefix=prefix)
    return {
        f"{sample.name} {sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_odd_names_of_kinds_keep_the_format_whole_S98() -> None:
    jobs = Family("jobs", "gauge", "Jobs.", ("kind", "state"), [Sample((ODD, "queued"), 3), Sample(("b", "done"), 1)])
    assert parsed(jobs) == {
        f"rota_jobs [('kind', {ODD!r}), ('state', 'queued')]": 3.0,
        "rota_jobs [('kind', 'b'), ('state', 'done')]": 1.0,
    }
    text, content_type = render([jobs], prefix="rota")
    assert content_type.startswith("text/plain")
    assert len(text.decode().splitlines()) == 4, "two comments and two samples: no name begins a line of its own"


def test_each_type_has_its_form_and_the_prefix() -> None:
    values = parsed(
        Family("failures_total", "counter", "F.", (), [Sample((), 2)]),
        Family("run_seconds", "histogram", "R.", ("kind",), [Sample(("a",), 1.5, [(0.1, 1), (float("inf"), 4)])]),
        prefix="kairos",
    )
    assert values["kairos_failures_total []"] == 2
    assert values["kairos_run_seconds_bucket [('kind', 'a'), ('le', '0.1')]"] == 1
    assert values["kairos_run_seconds_bucket [('kind', 'a'), ('le', '+Inf')]"] == 4
    assert values["kairos_run_seconds_count [('kind', 'a')]"] == 4
    assert values["kairos_run_seconds_sum [('kind', 'a')]"] == 1.5


def test_a_scraper_gets_the_form_that_it_accepts() -> None:
    up = Family("up", "gauge", "U.", (), [Sample((), 1)])
    text, content_type = render([up], prefix="rota", accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


async def nothing() -> list[Family]:
    return []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "metrics.internal"])
def test_an_address_beyond_this_machine_needs_a_token(host: str) -> None:
    with pytest.raises(SettingsError, match="metrics_token"):
        MetricsServer(nothing, prefix="rota", host=host, port=0, token=None)
    MetricsServer(nothing, prefix="rota", host=host, port=0, token="secret")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.0.1"])
def test_this_machine_needs_none(host: str) -> None:
    MetricsServer(nothing, prefix="rota", host=host, port=0, token=None)
