"""The OpenAPI document of the gateway's HTTP routes, made from the structs that they read and write. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rota.runners import api
from rota.version import __version__

_REF: Final = "#/components/schemas/{name}"
_ASKED: Final = (
    "CreateJob", "RequiresBody", "LimitsBody", "RunOp", "Verdict", "PutOrganisation", "Pair", "Rotate", "Proof",
)  # fmt: skip
"""What engines and devices write: many languages write null where something is not set."""
_ID: Final = {"name": "id", "in": "path", "required": True, "schema": msgspec.json.schema(api.Name)}
_WAIT: Final = {
    "name": "wait", "in": "query", "schema": {"type": "string", "pattern": "^[0-9]{1,9}s?$"},
    "description": f"Whole seconds, such as 30s; more than {api.WAIT_S_MAX} are cut to that.",
}  # fmt: skip

_UNTIL: Final = {
    "name": "until", "in": "query", "schema": {"type": "string", "enum": list(api.UNTIL)},
    "description": "What to wait for: the end, or that a runner has accepted the job.",
}  # fmt: skip

_ORG: Final = {"name": "org", "in": "query", "schema": {"type": "string"}}
_CAPS: Final = {
    "name": "caps", "in": "query", "schema": {"type": "string"},
    "description": "Job types that they must have, with commas between them.",
}  # fmt: skip


def document() -> dict[str, Any]:
    """The document, as JSON values."""
    structs = (
        api.CreateJob, api.JobBody, api.RunOp, api.OpDone, api.Runners, api.Scaling, api.Staging, api.Ended,
        api.Problem, api.Pair, api.Paired, api.Verdict, api.PutOrganisation, api.Organisation, api.Rotate, api.Rotated,
    )  # fmt: skip
    _, schemas = msgspec.json.schema_components(structs, ref_template=_REF)
    for name in _ASKED:
        _may_be_null(schemas[name])
    internal = {
        "/internal/v1/jobs": {
            "post": _route(
                "Create a job, once for each idempotency key.",
                {201: "JobBody", 200: "JobBody", 403: "Problem"},
                body="CreateJob",
            )
        },
        "/internal/v1/jobs/{id}": {
            "parameters": [_ID],
            "get": _route(
                "Read a job; wait until it has ended.", {200: "JobBody", 404: "Problem"}, query=[_WAIT, _UNTIL]
            ),
            "delete": _route("Cancel a job.", {200: "JobBody", 202: "JobBody", 404: "Problem"}),
        },
        "/internal/v1/jobs/{id}/staging": {
            "parameters": [_ID],
            "post": _route("Take a number for a staging key.", {200: "Staging", 404: "Problem"}),
        },
        "/internal/v1/jobs/{id}/verdict": {
            "parameters": [_ID],
            "post": _route(
                "Say that an output of the job was refused: it fails with class runner.",
                {200: "JobBody", 404: "Problem", 409: "Problem"},
                body="Verdict",
            ),
        },
        "/internal/v1/organisations/{id}": {
            "parameters": [_ID],
            "get": _route("Read whether an organisation may use runners.", {200: "Organisation"}),
            "put": _route("Disable an organisation, or enable it.", {200: "Organisation"}, body="PutOrganisation"),
        },
        "/internal/v1/executions/{id}": {
            "parameters": [_ID],
            "delete": _route("Cancel all jobs of an execution that is over.", {200: "Ended"}),
        },
        "/internal/v1/runners": {
            "get": _route("Which runners are connected to this replica.", {200: "Runners"}, query=[_ORG, _CAPS])
        },
        "/internal/v1/sessions/{id}/ops": {
            "parameters": [_ID],
            "post": _route(
                "Run one op in a session and wait for its result.",
                {200: "OpDone", 404: "Problem", 409: "Problem", 410: "Problem", 502: "Problem", 504: "Problem"},
                body="RunOp",
            ),
        },
        "/internal/v1/scaling": {"get": _route("The scaling signal.", {200: "Scaling"})},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Rota gateway", "version": __version__},
        "paths": {
            **internal,
            "/v1/pair": {
                "post": _route(
                    "Register a device's key with a one-time code.",
                    {201: "Paired", 403: "Problem", 429: "Problem"},
                    body="Pair",
                    internal=False,
                )
            },
            "/v1/rotate": {
                "post": _route(
                    "Register a device's next key, signed with the one that it has.",
                    {200: "Rotated", 403: "Problem", 421: "Problem", 429: "Problem"},
                    body="Rotate",
                    internal=False,
                )
            },
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _may_be_null(schema: dict[str, Any]) -> None:
    for name, field in schema["properties"].items():
        if name not in schema.get("required", ()) and {"type": "null"} not in field.get("anyOf", ()):
            default = {"default": field.pop("default")} if "default" in field else {}
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}]} | default


def _route(
    summary: str,
    answers: Mapping[int, str],
    *,
    body: str | None = None,
    query: list[dict[str, Any]] | None = None,
    internal: bool = True,
) -> dict[str, Any]:
    problems = {400: "Problem", 503: "Problem"} | ({401: "Problem"} if internal else {})
    if body is not None:
        problems |= {413: "Problem"}
    route: dict[str, Any] = {
        "summary": summary,
        "responses": {
            str(status): {"description": schema, "content": {"application/json": {"schema": _ref(schema)}}}
            for status, schema in sorted({**problems, **answers}.items())
        },
    }
    if internal:
        route["security"] = [{"token": []}]
    if query:
        route["parameters"] = query
    if body is not None:
        route["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    return route


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(name=name)}
