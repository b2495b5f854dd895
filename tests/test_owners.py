"""Whose a response is (:mod:`proxy.owners`)."""

from __future__ import annotations

from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from proxy.owners import Owners

OWNERS = Owners()


def owner(*headers: tuple[str, str], owners: Owners = OWNERS) -> bytes:
    """The owner of what a request with these headers makes."""
    return owners.owner_of(make_mocked_request("GET", "/", headers=CIMultiDict(headers)))


KEY = ("Authorization", "Bearer key")
#: Of LiteLLM, Gemini, Cloudflare, oauth2-proxy and its like.
OTHER_CREDENTIALS = (
    "Cookie",
    "x-litellm-api-key",
    "x-goog-api-key",
    "Proxy-Authorization",
    "x-auth-token",
    "Cf-Access-Jwt-Assertion",
    "X-Forwarded-User",
    "Remote-User",
    "X-Forwarded-Client-Cert",
    "Sec-WebSocket-Protocol",
)


def test_same_credential_is_the_same_owner() -> None:
    """However its header is spelt, and whatever else the request says."""
    assert len(owner(KEY)) == 32
    assert owner(KEY) == owner(("authorization", "Bearer key"), ("User-Agent", "x"), ("X-Request-Id", "1"))
    assert owner(KEY) == owner(
        KEY, ("Cookie", "a=b"), ("OpenAI-Beta", "x"), ("session-id", "1"), ("x-oai-attestation", "1")
    )
    assert owner() == owner(("User-Agent", "x"), ("traceparent", "1"))


def test_other_credential_is_another_owner() -> None:
    """Another key, the same in another header, one more or one less, twice, or cut elsewhere."""
    account = ("OpenAI-Organization", "a")
    owners = [
        owner(),
        owner(KEY),
        owner(("Authorization", "Bearer kez")),
        owner(("Authorization", "bearer key")),
        owner(("Authorization", "")),
        owner(("api-key", "Bearer key")),
        owner(("x-api-key", "Bearer key")),
        owner(KEY, KEY),
        owner(KEY, account),
        owner(KEY, ("OpenAI-Project", "a")),
        owner(KEY, ("ChatGPT-Account-Id", "a")),
        owner(account),
        owner(("Authorization", "Bearer key;openai-organization:1:a")),
        owner(("Authorization", "Bearer k\xe9y")),
        *(owner((name, "a")) for name in OTHER_CREDENTIALS),
        *(owner(KEY, (name, "a")) for name in OTHER_CREDENTIALS[1:]),
    ]
    assert len(set(owners)) == len(owners)


def test_owner_tells_nothing_of_the_credential() -> None:
    """No part of it stands in it."""
    assert b"key" not in owner(KEY)


def test_owner_is_nobodys_in_another_process_without_the_same_key() -> None:
    """The hash tells nothing of a credential to whoever lacks its key; workers that share responses share it."""
    assert owner(KEY, owners=Owners()) != owner(KEY, owners=Owners())
    assert owner(KEY, owners=Owners(b"k" * 32)) == owner(KEY, owners=Owners(b"k" * 32))
