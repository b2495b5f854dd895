"""The options of backends: the short form and the long one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from proxy.config import Config
from proxy.served import Backend, Upstream

A = {"name": "a", "replicas": ["http://a/v1"]}
B = {"name": "b", "replicas": ["http://b-1/v1", "http://b-2/v1"], "models": ["m", "m-*"], "aliases": {"x": "m"}}


def test_upstream_is_the_short_form_of_one_backend_with_one_replica() -> None:
    """With all its options."""
    upstream = Upstream(url="http://a/v1", profile="vllm", max_in_flight=3)
    config = Config(upstream=upstream)
    (only,) = config.served
    assert only == config.default == Backend.of(upstream)
    assert (only.replicas, only.profile, only.max_in_flight) == (("http://a/v1",), "vllm", 3)
    assert config.replicas == [("upstream", "http://a/v1")]


def test_backends_have_names_and_a_default() -> None:
    """The first one, unless another one is named."""
    config = Config.model_validate({"backends": [A, B]})
    assert config.default.name == "a"
    assert config.replicas == [("a", "http://a/v1"), ("b", "http://b-1/v1"), ("b", "http://b-2/v1")]
    assert Config.model_validate({"backends": [A, B], "routing": {"default": "b"}}).default.name == "b"
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_backend_has_the_options_of_upstream() -> None:
    """But for where it is."""
    assert set(Upstream.model_fields) - set(Backend.model_fields) == {"url"}
    assert set(Backend.model_fields) - set(Upstream.model_fields) == {"name", "replicas", "models", "aliases"}


@pytest.mark.parametrize(
    ("document", "paths"),
    [
        ({"backends": [A, A]}, ["backends.1.name"]),
        ({"backends": [A, B, {**B, "name": "c"}]}, ["backends.2.models", "backends.2.aliases"]),
        ({"backends": [{**A, "models": ["m"], "aliases": {"m": "n"}}]}, ["backends.0.aliases"]),
        ({"backends": [{**A, "replicas": ["http://a", "http://a"]}]}, ["backends.0.replicas.1"]),
        ({"backends": [{**A, "replicas": ["http://a", "http://localhost:8080"]}]}, ["backends.0.replicas.1"]),
        ({"backends": [A], "routing": {"default": "z"}}, ["routing.default"]),
        ({"backends": [A], "upstream": {"url": "http://x"}}, ["backends"]),
        ({"backends": [A, B]}, []),
        ({"upstream": {"url": "http://x"}, "routing": {"default": "upstream"}}, []),
    ],
)
def test_conflicts_are_found(document: dict[str, Any], paths: list[str]) -> None:
    """Names that mean two things, or nothing; and a proxy that would call itself."""
    assert [path for path, _ in Config.model_validate(document).conflicts()] == paths


@pytest.mark.parametrize(
    "backend",
    [{}, {"name": "a"}, {**A, "name": "a b"}, {**A, "name": ""}, {**A, "replicas": []}, {**A, "url": "http://a"}],
)
def test_backend_needs_a_name_and_a_replica(backend: dict[str, Any]) -> None:
    """And has no option that is not its own."""
    with pytest.raises(ValidationError):
        Config.model_validate({"backends": [backend]})


@pytest.mark.parametrize("profile", ["generic", "vllm"])
def test_rules_are_the_profiles_with_the_operators_choices(profile: str) -> None:
    """What the core is told of a backend."""
    backend = Backend.model_validate({**A, "profile": profile, "drop_fields": ["metadata"], "state": "upstream"})
    assert "metadata" in backend.rules(frozenset()).drop_fields
    assert backend.rules(frozenset()).profile.name == profile
    assert backend.rules(frozenset()).keeps_responses
