"""Milvus's client, and what its failures mean."""

from __future__ import annotations

import importlib
from typing import Any

from nearkin.errors import UserError


def package(name: str) -> Any:
    """A module of the extra, imported when it is needed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError("Milvus's client is not installed; pip install 'nearkin[milvus]'") from error


def passing(error: Any) -> bool:
    """Whether a failure may be gone at the next attempt."""
    grpc = package("grpc")
    code = error.code() if isinstance(error, grpc.RpcError) else error.code
    not_connected, not_loaded = 2, 101
    return code in (not_connected, not_loaded, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def reason(error: Any) -> str:
    """Its first line."""
    said = getattr(error, "message", "") or str(error)
    return said.strip().splitlines()[0]
