"""Numbers for Prometheus: their text by prometheus-client, and a small server for scrapes.

It knows nothing of jobs: what to show comes from a function that is asked at each scrape. The server shares the
caller's event loop, leaves signals to it, and answers nobody without the token where one is set.
"""

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rota.errors import SettingsError
from rota.io.families import Family
from rota.io.serving import BoundedHeads, is_loopback

STOP_S: Final = 2
"""How long a scrape that is under way may hold up the end of the server."""


def render(families: Sequence[Family], *, prefix: str, accept: str = "") -> tuple[bytes, str]:
    """The families as text, in the form that the scraper accepts.

    Args:
        families: what to show.
        prefix: goes before each name.
        accept: the scraper's Accept header.

    Returns: the text and its content type.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed([_metric(family, prefix) for family in families]))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Fixed(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def _metric(family: Family, prefix: str) -> Metric:
    name = f"{prefix}_{family.name}"
    if family.type == "histogram":
        histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
        for sample in family.samples:
            buckets = [
                ("+Inf" if bound == float("inf") else f"{bound}", float(count)) for bound, count in sample.buckets
            ]
            histogram.add_metric(sample.labels, buckets, sample.value)
        return histogram
    make = CounterMetricFamily if family.type == "counter" else GaugeMetricFamily
    metric = make(name, family.help, labels=family.labels)
    for sample in family.samples:
        metric.add_metric(sample.labels, sample.value)
    return metric


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the program's own business."""
        yield


class MetricsServer:
    """Answers GET /metrics. `start` and `stop` may be called twice and in any order.

    Args:
        families: asked at each scrape.
        prefix: goes before each name.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        token: what a scraper has to show as `Authorization: Bearer …`; None lets everybody in.

    Raises: SettingsError for an address beyond this machine without a token.
    """

    def __init__(
        self,
        families: Callable[[], Awaitable[Sequence[Family]]],
        *,
        prefix: str,
        host: str,
        port: int,
        token: str | None,
    ) -> None:
        if token is None and not is_loopback(host):
            raise SettingsError(
                f"metrics_host = {host!r} can be reached from other machines: "
                "set metrics_token as well, or leave metrics_host at 127.0.0.1."
            )
        self._families = families
        self._prefix = prefix
        self._host = host
        self._token = token
        self.port = port
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens.

        Raises: SettingsError if the address cannot be had.
        """
        if self._serving is not None:
            return
        try:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            listener = socket.create_server((self._host, self.port), family=family)
        except OSError as error:
            raise SettingsError(
                f"metrics_port = {self.port} on {self._host} cannot be had: {error.strerror or error}. "
                "Is another worker's parent there? Give each a port of its own."
            ) from None
        self.port = listener.getsockname()[1]
        app = Starlette(routes=[Route("/metrics", self._answer, methods=["GET"])])
        config = uvicorn.Config(
            app, http=BoundedHeads, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=STOP_S,
        )  # fmt: skip
        self._server = _Quiet(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def stop(self) -> None:
        """Answers what was asked, and ends."""
        server, serving, self._server, self._serving = self._server, self._serving, None, None
        if server is not None and serving is not None:
            server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)

    async def _answer(self, request: Request) -> Response:
        if self._token is not None and not _shows(request.headers, self._token):
            return PlainTextResponse(
                "Show the token: Authorization: Bearer …\n", status_code=401, headers={"WWW-Authenticate": "Bearer"}
            )
        text, content_type = render(
            await self._families(), prefix=self._prefix, accept=request.headers.get("accept", "")
        )
        return Response(text, headers={"Content-Type": content_type})


def _shows(headers: Mapping[str, str], token: str) -> bool:
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    # In constant time: how long a refusal takes says nothing of the token.
    return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), token.encode())
