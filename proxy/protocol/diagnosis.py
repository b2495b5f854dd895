"""What a refusal is about: a prompt too long for the model, or state that the backend no longer has.

Clients act on both (they compact, or send everything again), and they know them by the API's own codes. Most backends
say neither: they answer 400 or 404 with a sentence. Those sentences are here, as data, one tuple per kind of backend; each
is quoted whole, with its origin, in `tests/protocol/test_diagnosis.py`.

A wrong diagnosis costs more than a missing one: a client that compacts for nothing loses its history. So a sentence is
only believed

* with a status that its kind of backend uses for it,
* if nothing in it speaks of another limit (:data:`_ABOUT_SOMETHING_ELSE`), and
* within its first 4,000 characters. No pattern has an unbounded repeat, so the work has a bound as well.

Codes are the backend's own verdict and believed as they come.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from proxy.protocol.errors import ItemNotFound
from proxy.protocol.profiles import Profile
from proxy.protocol.upstream_errors import ContextOverflow, UpstreamForgot, UpstreamRefused

Patterns = tuple[re.Pattern[str], ...]


@dataclass(frozen=True, slots=True)
class Signs:
    """By what sentences a kind of backend is known to say what.

    Attributes:
        overflow: The prompt is longer than the model's context.
        lost_response: The response that `previous_response_id` names is not there.
        lost_item: An item of an earlier response is not there.
        overflow_statuses: With which a sentence may mean overflow. 413 arrives as 400; 422 is FastAPI's and TGI's; 500
            is llama.cpp's for a context that fills up in the middle, and what an `error` event without a code stands for.
        lost_statuses: With which a sentence may mean loss.
    """

    overflow: Patterns = ()
    lost_response: Patterns = ()
    lost_item: Patterns = ()
    overflow_statuses: frozenset[int] = frozenset({400, 413, 422, 500})
    lost_statuses: frozenset[int] = frozenset({400, 404, 500})


def _patterns(*texts: str) -> Patterns:
    return tuple(re.compile(text, re.IGNORECASE) for text in texts)


_MAX_TEXT: Final = 4000

#: `exceed_context_size_error` is llama.cpp's `type` (capture llamacpp; smg hands it on, capture smg).
_OVERFLOW_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_LOST_CODES: Final = frozenset({"previous_response_not_found"})

#: Other limits, in sentences that also name a context length: the output's own limit (older vLLM), tokens a minute,
#: the length of one field; and validation errors, because those quote the client's input, which may say anything.
_ABOUT_SOMETHING_ELSE: Final = _patterns(
    r"\bmax_(?:completion_|output_|new_)?tokens['\"`]? is too large\b",
    r"\btokens per (?:min|hour|day)|\bTPM\b|\brate[ _-]?limit|\btoo many requests\b|\bthrottling",
    r"\b(?:string|array) too long\b|\b(?:string|array)_above_max_length\b",
    r"\A\s?\[\{|\b\d{1,6} validation errors?\b",
)

#: OpenAI's sentence since 2023, which vLLM, SGLang, FastChat, Dynamo, OpenRouter and DeepSeek took over.
_CONTEXT_LENGTH: Final = r"\bmaximum context length (?:is|of) [\d,]{1,12} tokens\b"
_ID: Final = r"['\"`]?[^\s'\"`]{1,600}['\"`]?"
_RESPONSE_WITH_ID: Final = rf"\bresponse with id {_ID} not found\b"

_OPENAI: Final = _patterns(
    _CONTEXT_LENGTH,
    r"\binput exceeds the context window of this model\b",
    r"\binput tokens exceed the configured limit of [\d,]{1,12} tokens\b",
)
_VLLM: Final = _patterns(
    _CONTEXT_LENGTH,
    r"\bmodel's context length is only \d{1,12} tokens\b",
    r"\blonger than the maximum model length of \d",
    r"\bengine prompt length \d{1,12} exceeds the max_model_len\b",
    # What is left for the answer, computed by vLLM itself. Some clients send -1 for "no limit": that is not it.
    r"\bmax_tokens must be at least 1, got -(?!1\b)\d",
)
_SGLANG: Final = _patterns(
    _CONTEXT_LENGTH,
    r"\blonger than the model's context length\b",
    r"\binput length \(\d{1,12} tokens\) exceeds the maximum allowed length\b",
)
_LLAMACPP: Final = _patterns(
    r"\bexceeds the available context size\b",
    r"\bcontext size has been exceeded\b",
)
_OLLAMA: Final = (
    *_LLAMACPP,  # its runner for most models
    *_patterns(
        r"\bprompt too long; exceeded (?:max )?context length\b",
        r"\binput length exceeds the context length\b",
    ),
)
#: Servers without a profile of their own: LM Studio (two), TensorRT-LLM, TGI (two), llama-cpp-python.
_OTHER_SERVERS: Final = _patterns(
    r"\bgreater than the context length \(n_keep\b",
    r"\bloaded with (?:a )?context length of only \d",
    r"\bsum of prompt length \([\d.]{1,14}\), query length \([\d.]{1,14}\) should not exceed max_num_tokens\b",
    r"`inputs` tokens \+ `max_new_tokens` must be <=",
    r"`inputs` must have less than \d{1,12} tokens\b",
    r"\brequested tokens \(\d{1,12}\) exceed context window of \d",
)
#: Hosted models behind a gateway: Anthropic (two), Gemini, Bedrock, Mistral, xAI, Groq and Cerebras, Qwen, Kimi, MiniMax,
#: Copilot, Poolside. What LiteLLM's exception mapping and pi's list of overflow patterns know.
_HOSTED: Final = _patterns(
    r"\bprompt is too long: \d{1,12} tokens > \d",
    r"\binput length and `max_tokens` exceed context limit\b",
    r"\binput token count (?:\(\d{1,12}\) )?exceeds the maximum number of tokens allowed\b",
    r"\binput is too long for requested model\b",
    r"\btoo large for model with \d{1,12} maximum context length\b",
    r"\bmaximum prompt length is \d{1,12} but the request contains \d",
    r"\breduce the length of the messages or completion\b",
    r"\brange of input length should be \[1, ?\d",
    r"\bexceeded model token limit: \d",
    r"\bcontext window exceeds limit\b",
    r"\bprompt token count of \d{1,12} exceeds the limit of \d",
    r"\bexceeds the maximum allowed input length of \d",
)
#: A gateway quotes the error it got, code and all, and LiteLLM puts the name of its own exception before it.
_QUOTED: Final = _patterns(
    r"\bcontext_length_exceeded\b|\bexceed_context_size_error\b",
    r"\bContextWindowExceededError\b",
)

_LOST_ITEM: Final = _patterns(
    rf"\bitem with id {_ID} not found\b",
    r"\bitems are not persisted when `?store`? is set to false\b",
)
#: OpenAI, vLLM, SGLang, TensorRT-LLM and smg word it alike; then Llama Stack, LM Studio, OpenCode Zen, and quoted codes.
_LOST_ANYWHERE: Final = _patterns(
    _RESPONSE_WITH_ID,
    r"\bresponse '[^\s']{1,600}' not found\b",
    rf"\bprediction history node with id {_ID} not found\b",
    r"\breferenced response not found or expired\b",
    r"\bprevious_response_not_found\b",
)

#: For what may be any backend, or have any behind it. A gateway may answer 502 or 503 for what its backend refused.
_ANYTHING: Final = Signs(
    overflow=tuple(
        dict.fromkeys(
            (*_OPENAI, *_VLLM, *_SGLANG, *_OLLAMA, *_OTHER_SERVERS, *_HOSTED, *_QUOTED),
        )
    ),
    lost_response=_LOST_ANYWHERE,
    lost_item=_LOST_ITEM,
    overflow_statuses=frozenset({400, 413, 422, 500, 502, 503}),
)

SIGNS: Final[dict[str, Signs]] = {
    "generic": _ANYTHING,
    "openai": Signs(_OPENAI, lost_response=_patterns(_RESPONSE_WITH_ID), lost_item=_LOST_ITEM),
    "vllm": Signs(_VLLM, lost_response=_patterns(_RESPONSE_WITH_ID)),
    "sglang": Signs(_SGLANG, lost_response=_patterns(_RESPONSE_WITH_ID)),
    # Keeps nothing: it refuses `previous_response_id` as such (capture llamacpp), and sending again cures that not.
    "llamacpp": Signs(_LLAMACPP),
    # Keeps nothing either.
    "ollama": Signs(_OLLAMA),
    "litellm": _ANYTHING,
    # Neither checks the length of a prompt nor looks at `previous_response_id` (seen: 200 for both).
    "transformers": Signs(),
}


def diagnose(refusal: UpstreamRefused, profile: Profile) -> UpstreamRefused:
    """Say what a refusal is about, if that is known.

    Args:
        refusal: The backend's error as :mod:`proxy.protocol.refusals` read it.
        profile: The kind of backend; one that is not in :data:`SIGNS` may be anything.

    Returns:
        A :class:`ContextOverflow`, an :class:`UpstreamForgot`, or the refusal itself. Message, status, type and headers
        stay the backend's; code and, for lost state, param become those that clients know. A lost item gets the ones of
        :class:`ItemNotFound`: its request need not have named a previous response.
    """
    signs = SIGNS.get(profile.name, _ANYTHING)
    text = refusal.message[:_MAX_TEXT]
    codes = {refusal.code, refusal.type}
    about_it = not _finds(_ABOUT_SOMETHING_ELSE, text)
    may_overflow = about_it and refusal.status in signs.overflow_statuses
    may_be_lost = about_it and refusal.status in signs.lost_statuses
    if codes & _OVERFLOW_CODES or (may_overflow and _finds(signs.overflow, text)):
        return _as(ContextOverflow, refusal, param=refusal.param)
    if codes & _LOST_CODES or (may_be_lost and _finds(signs.lost_response, text)):
        return _as(UpstreamForgot, refusal)
    if may_be_lost and _finds(signs.lost_item, text):
        return _as(UpstreamForgot, refusal, code=ItemNotFound.code, param=ItemNotFound.param)
    return refusal


def _as(
    kind: type[UpstreamRefused], refusal: UpstreamRefused, *, code: str | None = None, param: str | None = None
) -> UpstreamRefused:
    """The same words as another error; what is None is the class's own."""
    return kind(
        refusal.message, status=refusal.status, type=refusal.type, code=code, param=param, headers=refusal.headers
    )


def _finds(patterns: Patterns, text: str) -> bool:
    return any(pattern.search(text) for pattern in patterns)
