"""Whose a stored response is: whoever shows the same credential.

All headers that a backend may take for a credential count, each with its name: a key with another organisation beside it
is another account. What is kept of them is a keyed hash, of which nobody can tell the credential or recognise it in
another process.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

from aiohttp import web

from proxy.protocol.store import Owner

_CREDENTIALS: Final = (
    "authorization",
    "api-key",
    "x-api-key",
    "openai-organization",
    "openai-project",
    "chatgpt-account-id",
)
_KEY: Final = secrets.token_bytes(32)


def owner_of(request: web.BaseRequest) -> Owner:
    """Who sends a request.

    Returns:
        32 bytes, the same for the same credential for as long as the process lives; those without any share one.
    """
    digest = hmac.new(_KEY, digestmod="sha256")
    for name in _CREDENTIALS:
        for value in request.headers.getall(name, ()):
            # Lengths keep values apart, so that no two sets of headers are the same bytes.
            raw = value.encode("utf-8", "surrogateescape")
            digest.update(b"%b:%d:%b;" % (name.encode(), len(raw), raw))
    return digest.digest()
