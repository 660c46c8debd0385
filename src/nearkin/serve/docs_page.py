"""The API documentation as one HTML page, made from the OpenAPI description, without scripts or other servers."""

from __future__ import annotations

from html import escape
from typing import Any


def docs_page(description: dict[str, Any]) -> str:
    """HTML that lists every endpoint with its parameters and responses.

    >>> "<h1>nearkin" in docs_page({"info": {"title": "nearkin", "version": "1", "description": ""}, "paths": {}})
    True
    """
    info = description["info"]
    endpoints = "".join(
        _endpoint(method, path, operation)
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(info["title"])} API</title><link rel="icon" href="/icon.svg">'
        '<link rel="stylesheet" href="/page.css"><main class="api">'
        f"<h1>{escape(info['title'])} {escape(info['version'])} API</h1><p>{escape(info['description'])} "
        'OpenAPI description: <a href="/openapi.json">openapi.json</a>. <a href="/">Back to the search page</a></p>'
        f"{endpoints}</main></html>"
    )


def _endpoint(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = [
        (each["name"], each["schema"], each.get("description", "")) for each in operation.get("parameters", [])
    ]
    for form in operation.get("requestBody", {}).get("content", {}).values():
        parameters += [
            (name, schema, schema.get("description", "")) for name, schema in form["schema"]["properties"].items()
        ]
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{escape(_kind(schema))}<td>{escape(text)}</tr>"
        for name, schema, text in parameters
    )
    responses = ", ".join(
        f"{code} {escape(response['description'])}" for code, response in sorted(operation["responses"].items())
    )
    return (
        f"<section><h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['description'])}</p>"
        + (f"<table>{rows}</table>" if rows else "")
        + f"<p>Responses: {responses}</p></section>"
    )


def _kind(schema: dict[str, Any]) -> str:
    """
    >>> _kind({"type": "integer", "minimum": 1, "maximum": 200, "default": 20})
    'integer from 1 to 200, default 20'
    """
    kind: str = schema.get("format") or schema.get("type") or schema.get("anyOf", [{}])[0].get("type", "")
    if "minimum" in schema:
        kind += f" from {schema['minimum']:g} to {schema['maximum']:g}"
    return kind + (f", default {schema['default']}" if schema.get("default") is not None else "")
