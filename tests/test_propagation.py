"""What of a trace travels (proxy.propagation): only what is valid."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from opentelemetry.context import Context
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from proxy.propagation import from_headers, from_metadata, without

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def from_parent(parent: str) -> dict[str, str]:
    """What is taken of one header."""
    return from_headers(CIMultiDict({"traceparent": parent}))


@pytest.mark.parametrize(
    "parent", [PARENT, f"00-{TRACE}-{SPAN}-00", f"01-{TRACE}-{SPAN}-03", f"01-{TRACE}-{SPAN}-01-x"]
)
def test_valid_parent_is_taken(parent: str) -> None:
    """As it is; OpenTelemetry takes it too."""
    assert from_parent(parent) == {"traceparent": parent}
    context = TraceContextTextMapPropagator().extract({"traceparent": parent}, Context())
    assert get_current_span(context).get_span_context().is_valid


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT.upper(),
        f"{PARENT}\n",
        f" {PARENT}",
        f"{PARENT}-x",
        f"{PARENT}-",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"01-{TRACE}-{SPAN}-01-{'x' * 500}",
        f"01-{TRACE}-{SPAN}-01-a\r\nb",
    ],
)
def test_invalid_parent_is_none(parent: str) -> None:
    """Then there is no trace, and its state says nothing either."""
    assert from_headers(CIMultiDict({"traceparent": parent, "tracestate": "a=b"})) == {}


def test_states_are_one() -> None:
    """A header that is there twice counts as a list (RFC 9110 section 5.3)."""
    headers = CIMultiDict([("Traceparent", PARENT), ("Tracestate", "a=b"), ("tracestate", "c=d")])
    assert from_headers(headers) == {"traceparent": PARENT, "tracestate": "a=b,c=d"}


@pytest.mark.parametrize("state", ["a=b\r\nx: y", "a=\x7f", "a=é", "x" * 513])
def test_state_that_cannot_be_a_header_is_left_out(state: str) -> None:
    """The trace is known without it."""
    metadata = {"traceparent": PARENT, "tracestate": state}
    assert from_metadata(json.dumps(metadata).encode()) == {"traceparent": PARENT}


@pytest.mark.parametrize(
    ("metadata", "taken"),
    [
        ({"traceparent": PARENT}, True),
        ({"ws_request_header_traceparent": PARENT}, True),
        ({"traceparent": "mine", "ws_request_header_traceparent": PARENT}, True),
        ({"traceparent": 1}, False),
        ({"other": PARENT}, False),
        ([PARENT, "traceparent"], False),
        ("traceparent", False),
        (None, False),
    ],
)
def test_metadata_has_either_name(metadata: object, taken: bool) -> None:  # noqa: FBT001
    """The header's, or Codex's."""
    assert from_metadata(json.dumps(metadata).encode()) == ({"traceparent": PARENT} if taken else {})


def test_state_goes_by_the_name_of_its_parent() -> None:
    """Codex's two belong together."""
    metadata = {"ws_request_header_traceparent": PARENT, "ws_request_header_tracestate": "a=b", "tracestate": "c=d"}
    assert from_metadata(json.dumps(metadata).encode()) == {"traceparent": PARENT, "tracestate": "a=b"}


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_metadata_may_be_anything(before: bytes, behind: bytes) -> None:
    """What is no JSON names no trace."""
    assert from_metadata(b'{"traceparent"' + before + behind) == {}


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_state_may_be_anything_that_a_header_can_be(state: str) -> None:
    """OpenTelemetry takes what it can of it."""
    headers = from_headers(CIMultiDict({"traceparent": PARENT, "tracestate": state}))
    context = TraceContextTextMapPropagator().extract(headers, Context())
    assert get_current_span(context).get_span_context().is_valid


def test_others_are_left() -> None:
    """However they are spelt."""
    assert without({"Traceparent": "x", "tracestate": "y", "x-request-id": "z"}) == {"x-request-id": "z"}
