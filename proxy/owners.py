"""Whose a stored response is: whoever shows the same credential.

Every header counts that a backend, or whatever stands before it, may take for a credential, each with its name: a key with
another organisation beside it is another account. Which these are is told by their names, since all of them reach the
backend with plain requests; one too many costs a client a repetition, one too few shows it what is another's. Cookies
count only where there is nothing else: many change from one request to the next.

What is kept of them is a keyed hash, of which nobody can tell the credential or recognise it in another process.
"""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Final

from aiohttp import web

from proxy.protocol.store import Owner

_CREDENTIAL: Final = re.compile(
    r"auth|api-?key|token|secret|password|credential|jwt|assertion|client-cert"
    r"|account|organization|project|(?:forwarded|remote|authenticated)-(?:user|email)"
    r"|sec-websocket-protocol"  # where browsers put keys
)
"""In the name of a header, in lower case."""


class Owners:
    """Tells owners apart.

    Args:
        key: Of the hash. Processes that share stored responses share it.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.key = secrets.token_bytes(32) if key is None else key

    def owner_of(self, request: web.BaseRequest) -> Owner:
        """Who sends a request.

        Returns:
            32 bytes, the same for the same credential and key; those without any share one.
        """
        names = {name.lower() for name in request.headers}
        digest = hmac.new(self.key, digestmod="sha256")
        for name in sorted(filter(_CREDENTIAL.search, names)) or ["cookie"]:
            for value in request.headers.getall(name, ()):
                # Lengths keep values apart, so that no two sets of headers are the same bytes.
                raw = value.encode("utf-8", "surrogateescape")
                digest.update(b"%b:%d:%b;" % (name.encode(), len(raw), raw))
        return digest.digest()
