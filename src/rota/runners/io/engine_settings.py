"""The engine that a program's settings describe."""

from rota.errors import GatewayAbsent
from rota.objects.io.from_settings import store_of
from rota.runners.engine_answers import ABSENT_S
from rota.runners.io.engine import Engine, EngineOptions
from rota.runners.io.engine_session import Means
from rota.runners.io.gateway_client import GatewayClient
from rota.runners.io.promoting import Promoting
from rota.runners.io.trust import trusted_gateways
from rota.settings import Settings


def engine_of(settings: Settings) -> Engine:
    """Makes the engine; it connects when it is first needed.

    Raises: GatewayAbsent if no gateway is set, so that a handler can do without; SettingsError for a setting that
        cannot be used.
    """
    if settings.gateway_url is None:
        raise GatewayAbsent(
            "No gateway is set, so there are no runners. Set ROTA_GATEWAY_URL and ROTA_GATEWAY_TOKEN; `rota gateway` "
            "starts one.",
            after_s=ABSENT_S,
        )
    objects = store_of(settings)
    return Engine(
        Means(
            GatewayClient(
                settings.gateway_url, token=settings.gateway_token, tls=trusted_gateways(settings.gateway_ca)
            ),
            objects,
            Promoting(objects, ffmpeg=settings.ffmpeg),
        ),
        EngineOptions(wait_s=settings.gateway_wait_s),
    )
