"""What the sections of the configuration have in common, and the kinds of value that several of them use."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from proxy.values import Duration, Size, check_number

Message = Annotated[Size, Field(ge=1, le=2**31)]
"""A size of one piece; aiohttp counts a message's bytes in 32 bits."""
Wait = Annotated[Duration, Field(gt=0)]
"""A duration that cannot be left out."""
Many = Annotated[int, BeforeValidator(check_number), Field(ge=0, le=1024)]
"""A number of things, or none of them."""
Share = Annotated[float, Field(ge=0, le=1)]
"""A part of a whole."""
Text = Annotated[str, Field(min_length=1)]
"""Any text but none."""


class Section(BaseModel):
    """Options that belong together: frozen, and strict in what they take."""

    # An error names the place, not the input: that may be a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _take_nothing(cls, value: Any) -> Any:
        """A section whose options are all commented out is null in YAML."""
        return {} if value is None else value


def is_installed(*modules: str) -> bool:
    """Whether modules can be imported: those of an extra, say."""
    try:
        return all(importlib.util.find_spec(module) is not None for module in modules)
    except ModuleNotFoundError:  # nor what it is in
        return False
