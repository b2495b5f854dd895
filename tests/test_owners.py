"""Whose a response is (:mod:`proxy.owners`)."""

from __future__ import annotations

from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from proxy.owners import owner_of


def owner(*headers: tuple[str, str]) -> bytes:
    """The owner of what a request with these headers makes."""
    return owner_of(make_mocked_request("GET", "/", headers=CIMultiDict(headers)))


KEY = ("Authorization", "Bearer key")


def test_same_credential_is_the_same_owner() -> None:
    """However its header is spelt, and whatever else the request says."""
    assert len(owner(KEY)) == 32
    assert owner(KEY) == owner(("authorization", "Bearer key"), ("User-Agent", "x"), ("X-Request-Id", "1"))
    assert owner() == owner(("Cookie", "a=b"))


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
    ]
    assert len(set(owners)) == len(owners)


def test_owner_tells_nothing_of_the_credential() -> None:
    """No part of it stands in it."""
    assert b"key" not in owner(KEY)
