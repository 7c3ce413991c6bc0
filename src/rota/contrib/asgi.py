"""The admin endpoint for ASGI programs: Starlette, FastAPI and what is built on them.

It reads and never writes, and it knows no users: a function of the program says who may see what.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rota.app import App
from rota.queue.watching import Viewer

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""What jobs hold is the viewer's alone, and is never anything but data."""


def admin_jobs(
    app: App, viewer_of: Callable[[Request], Awaitable[Viewer | None]]
) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint with the jobs by kind and state and the last failures; see `App.admin_jobs` for what it answers.

    Args:
        app: the program.
        viewer_of: says whose jobs the sender of a request may see; None refuses with 403.

    Returns: the endpoint, for a GET route.
    """

    async def endpoint(request: Request) -> Response:
        viewer = await viewer_of(request)
        if viewer is None:
            return JSONResponse({"error": "Only an administrator may see this."}, status_code=403, headers=HEADERS)
        return JSONResponse(await app.admin_jobs(viewer), headers=HEADERS)

    return endpoint
