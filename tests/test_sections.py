"""What sections of the configuration have in common (proxy.sections)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from proxy.sections import Many, Section, Text, is_installed


class Options(Section):
    """A section."""

    many: Many = 1
    text: Text = "t"


def test_section_is_strict_and_frozen() -> None:
    """An unknown option, and one that is changed later, are mistakes; null is a section without options."""
    assert Options.model_validate(None) == Options()
    with pytest.raises(ValidationError):
        Options.model_validate({"more": 1})
    with pytest.raises(ValidationError):
        Options().many = 2  # type: ignore[misc]


@pytest.mark.parametrize("value", [{"many": -1}, {"many": True}, {"many": 1025}, {"text": ""}, {"text": 1}])
def test_mistake_does_not_repeat_the_value(value: dict[str, object]) -> None:
    """It may be a secret in the wrong place."""
    with pytest.raises(ValidationError) as caught:
        Options.model_validate(value)
    assert "input_value" not in str(caught.value)


def test_modules_of_extras_are_looked_for() -> None:
    """Without importing them."""
    assert is_installed("json", "json.decoder")
    assert not is_installed("json", "no_such_module")
    assert not is_installed("no_such_package.module")
