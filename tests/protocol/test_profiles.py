"""Profiles: data about backends, complete and consistent."""

from __future__ import annotations

import pytest

from proxy.protocol.profiles import PROFILES, Compaction, Profile, RequestRules


def test_every_backend_of_the_guides_has_a_profile() -> None:
    """The configuration offers these kinds."""
    assert list(PROFILES) == ["generic", "openai", "vllm", "sglang", "llamacpp", "ollama", "litellm", "transformers"]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_profile_is_found_by_its_name_and_is_sensible(profile: Profile) -> None:
    """Idle connections are given up after a positive time, and nothing that steers a turn is dropped."""
    assert PROFILES[profile.name] is profile
    assert 0 < profile.keepalive_timeout <= 60
    assert not profile.drop_fields & {"model", "input", "tools", "instructions", "stream"}


def test_rules_of_a_profile_are_its_own_without_choices() -> None:
    """Without an operator's choices a profile's own fields are dropped."""
    assert RequestRules.of(PROFILES["transformers"]).drop_fields == PROFILES["transformers"].drop_fields


def test_operator_says_who_compacts() -> None:
    """Without a choice it is as the profile says: OpenAI can, a local server cannot, and of an unknown one nobody knows."""
    found = {name: RequestRules.of(profile).compaction for name, profile in PROFILES.items()}
    others = dict.fromkeys(PROFILES, Compaction.PROXY)
    assert found == {**others, "openai": Compaction.BACKEND, "generic": Compaction.ASK}
    assert RequestRules.of(PROFILES["generic"], compaction=Compaction.PROXY).compaction is Compaction.PROXY
