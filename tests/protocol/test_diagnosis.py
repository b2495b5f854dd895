"""What refusals are about: each sentence a backend is known to say, and those that only sound like it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from proxy.protocol import refusals
from proxy.protocol.diagnosis import SIGNS, Signs, diagnose
from proxy.protocol.profiles import PROFILES, Profile
from proxy.protocol.upstream_errors import ContextOverflow, UpstreamForgot, UpstreamRefused

CAPTURES = Path(__file__).parents[1] / "captures"


class Said(NamedTuple):
    """A sentence and where it is from.

    Attributes:
        profile: The kind of backend that says it; what has no profile of its own is `generic`.
        status: Its status as the proxy shows it (413 is 400).
        message: The sentence.
        origin: Where it was seen or read.
    """

    profile: str
    status: int
    message: str
    origin: str


OVERFLOWS = [
    Said(
        "openai",
        400,
        "This model's maximum context length is 4097 tokens, however you requested 4231 tokens (3975 in your prompt; "
        "256 for the completion). Please reduce your prompt; or completion length.",
        "OpenAI, completions; hwchase17/chat-your-data#10",
    ),
    Said(
        "openai",
        400,
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. Please "
        "reduce the length of the messages.",
        "OpenAI, chat; also NVIDIA Dynamo, lib/llm preprocessor",
    ),
    Said(
        "openai",
        400,
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "OpenAI, Responses; pi packages/ai/src/utils/overflow.ts",
    ),
    Said(
        "openai",
        400,
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens. Please "
        "reduce the length of the messages.",
        "OpenAI, GPT-5; LiteLLM's tests of its exception mapping",
    ),
    Said(
        "vllm",
        400,
        "This model's maximum context length is 16384 tokens. However, your prompt contains at least 16385 input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
        "(parameter=input_tokens, value=16385)",
        "vLLM 0.32, capture vllm",
    ),
    Said(
        "vllm",
        400,
        "This model's maximum context length is 16384 tokens. However, you requested 8192 output tokens and your prompt "
        "contains at least 8193 input tokens, for a total of at least 16385 tokens.",
        "vLLM, vllm/renderers/params.py of 2026",
    ),
    Said(
        "vllm",
        400,
        "This model's maximum context length is 4096 tokens. However, you requested 4320 tokens (1320 in the messages, "
        "3000 in the completion). Please reduce the length of the messages or completion.",
        "vLLM, vllm/entrypoints/openai/serving_engine.py of 2024",
    ),
    Said(
        "vllm",
        400,
        "You passed 9000 input tokens and requested 0 output tokens. However, the model's context length is only 8192 "
        "tokens, resulting in a maximum input length of 8192 tokens. Please reduce the length of the input prompt.",
        "vLLM, vllm/renderers/params.py",
    ),
    Said(
        "vllm",
        400,
        "The decoder prompt (length 10896) is longer than the maximum model length of 8192. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens.",
        "vLLM, V1 processor; xorbitsai/inference#3785",
    ),
    Said(
        "vllm",
        400,
        "The engine prompt length 227861 exceeds the max_model_len 131072. Please reduce prompt.",
        "vLLM, serving_responses.py, _validate_generator_input",
    ),
    Said(
        "vllm",
        400,
        "max_tokens must be at least 1, got -46771. (parameter=max_tokens, value=-46771)",
        "vLLM, SamplingParams, where the room that is left for the answer is negative",
    ),
    Said(
        "sglang",
        400,
        "The input (85050 tokens) is longer than the model's context length (32768 tokens).",
        "SGLang, tokenizer_manager.py; sgl-project/sglang#8096; Together AI too",
    ),
    Said(
        "sglang",
        400,
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 4320 "
        "tokens: 1320 tokens from the input messages and 3000 tokens for the completion. Please reduce the number of "
        "tokens in the input messages or the completion to fit within the limit.",
        "SGLang, tokenizer_manager.py; sgl-project/sglang#3642",
    ),
    Said(
        "sglang",
        400,
        "Input length (9000 tokens) exceeds the maximum allowed length (8185 tokens). Use a shorter input or enable "
        "--allow-auto-truncate.",
        "SGLang, srt/managers/utils.py, validate_input_length",
    ),
    Said(
        "llamacpp",
        400,
        "request (80010 tokens) exceeds the available context size (16384 tokens), try increasing it",
        "llama.cpp b10434, capture llamacpp",
    ),
    Said(
        "llamacpp",
        400,
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        "llama.cpp of 2025",
    ),
    Said("llamacpp", 500, "Context size has been exceeded.", "llama.cpp, while it generates; LM Studio's MLX engine"),
    Said(
        "ollama",
        400,
        "prompt too long; exceeded max context length by 100918 tokens",
        "Ollama's cloud models; pi's overflow.ts",
    ),
    Said("ollama", 400, "the input length exceeds the context length", "Ollama, runner, with `truncate` off"),
    Said(
        "ollama",
        400,
        "request (60342 tokens) exceeds the available context size (32768 tokens), try increasing it",
        "Ollama, from llama.cpp under it",
    ),
    Said("ollama", 500, "Context size has been exceeded.", "Ollama, from llama.cpp under it"),
    Said(
        "litellm",
        400,
        "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: AnthropicException - "
        "b'{}'\nmodel=claude. context_window_fallbacks=None. fallbacks=None.",
        "LiteLLM, exception_mapping_utils.py: its own name for the case; form as in capture litellm",
    ),
    Said(
        "litellm",
        503,
        "litellm.ServiceUnavailableError: litellm.MidStreamFallbackError: litellm.APIConnectionError: "
        "APIConnectionError: OpenAIException - Requested token count exceeds the model's maximum context length of "
        "131072 tokens.",
        "LiteLLM in front of SGLang, in the middle of a stream; pi's overflow tests",
    ),
    Said(
        "litellm",
        500,
        'litellm.APIError: APIError: OpenAIException - {"error":{"message":"Too much.","type":"invalid_request_error",'
        '"code":"context_length_exceeded"}}',
        "LiteLLM quotes the provider's error; form as in capture litellm",
    ),
    Said(
        "generic",
        400,
        "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 10247 >= "
        "n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter input.",
        "LM Studio; tinyhumansai/openhuman#3550",
    ),
    Said(
        "generic",
        400,
        "Trying to keep the first 10136 tokens when context the overflows. However, the model is loaded with context "
        "length of only 7866 tokens, which is not enough. Try to load the model with a larger context length, or "
        "provide a shorter input",
        "LM Studio; cline/cline#3664",
    ),
    Said(
        "generic",
        400,
        "The sum of prompt length (9351.0), query length (0) should not exceed max_num_tokens (8192)",
        "TensorRT-LLM; NVIDIA/TensorRT-LLM#9277",
    ),
    Said(
        "generic",
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4031 `inputs` tokens and "
        "200 `max_new_tokens`",
        "Hugging Face TGI",
    ),
    Said(
        "generic",
        422,
        "Input validation error: `inputs` must have less than 2048 tokens. Given: 2085",
        "Hugging Face TGI",
    ),
    Said("generic", 500, "Requested tokens (21277) exceed context window of 8192", "llama-cpp-python"),
    Said("litellm", 400, "prompt is too long: 213462 tokens > 200000 maximum", "Anthropic; pi's overflow.ts"),
    Said(
        "litellm",
        400,
        "input length and `max_tokens` exceed context limit: 188059 + 20000 > 200000, decrease input length or "
        "`max_tokens` and try again",
        "Anthropic",
    ),
    Said(
        "litellm",
        400,
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        "Gemini; LiteLLM's exception mapping",
    ),
    Said("litellm", 400, "Input is too long for requested model.", "Amazon Bedrock"),
    Said(
        "litellm",
        400,
        "Prompt contains 235396 tokens and 0 draft tokens, too large for model with 131072 maximum context length",
        "Mistral",
    ),
    Said(
        "litellm",
        400,
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "xAI",
    ),
    Said(
        "litellm",
        400,
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
        "Cerebras; Groq says the first half",
    ),
    Said(
        "litellm",
        400,
        "InternalError.Algo.InvalidParameter: Range of input length should be [1, 202745]",
        "Alibaba DashScope (Qwen)",
    ),
    Said("litellm", 400, "Your request exceeded model token limit: 262144 (requested: 300000)", "Kimi"),
    Said("litellm", 400, "invalid params, context window exceeds limit", "MiniMax"),
    Said("litellm", 400, "prompt token count of 145000 exceeds the limit of 128000", "GitHub Copilot"),
    Said(
        "litellm",
        400,
        "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
        "Poolside, by way of OpenRouter",
    ),
]

LOST_RESPONSES = [
    Said(
        "openai",
        400,
        "Previous response with id 'resp_abc' not found.",
        "OpenAI; smg 1.13 (backends' conformance table)",
    ),
    Said("vllm", 404, "Response with id 'resp_nope' not found.", "vLLM 0.32, seen; code 404, param response_id"),
    Said("sglang", 404, "Response with id 'resp_nope' not found.", "SGLang, serving_responses.py, and TensorRT-LLM"),
    Said("generic", 404, "Response with ID 'resp_1' not found", "mistral.rs"),
    Said("generic", 404, "Response 'resp_1' not found.", "Llama Stack (ogx), common/errors.py, ResponseNotFoundError"),
    Said(
        "generic",
        404,
        "Response 'resp_1' not found. Use 'client.responses.list()' to list available Responses.",
        "Llama Stack, with its hint",
    ),
    Said(
        "generic",
        400,
        "Prediction history node with id 'resp_e9c47ab4' not found while attempting to build chat history chain that "
        "includes this node.",
        "LM Studio; lmstudio-ai/lmstudio-bug-tracker#1188",
    ),
    Said(
        "generic",
        400,
        "Error from provider (Console Go): Upstream request failed: [invalid_request_error] referenced response not "
        "found or expired",
        "OpenCode Zen",
    ),
    Said(
        "litellm",
        404,
        'litellm.NotFoundError: NotFoundError: Hosted_vllmException - {"error":{"message":"Response with id '
        '\'resp_bGl0ZWxsbTpjdXN0b21fbGxtX3Byb3ZpZGVyOg==\' not found.","code":404}}',
        "LiteLLM in front of vLLM; BerriAI/litellm#26147",
    ),
    Said(
        "litellm",
        400,
        'litellm.BadRequestError: OpenAIException - {"error":{"code":"previous_response_not_found","message":"gone"}}',
        "LiteLLM quotes the provider's error; form as in capture litellm",
    ),
]

LOST_ITEMS = [
    Said(
        "openai",
        404,
        "Item with id 'rs_0b5f3eb6f51f175c' not found. Items are not persisted when `store` is set to false. Try again "
        "with `store` set to true, or remove this item from your input.",
        "OpenAI, an item of a response that was not stored",
    ),
    Said("openai", 404, "Item with id 'msg_x' not found.", "OpenAI, an item_reference"),
    Said("generic", 404, "Items are not persisted when store is set to false", "a gateway in front of OpenAI"),
]

#: Asked of every profile: none of them may take these for anything but what they are.
NEAR_MISSES = [
    # The output's own limit
    (
        400,
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.",
    ),
    (
        400,
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 4000. This model's maximum context length is 4096 tokens "
            "and your request has 1297 input tokens (4000 > 4096 - 1297)."
        ),
    ),
    (
        400,
        "max_tokens=999999 cannot be greater than max_model_len=max_total_tokens=81920. Please request fewer output tokens.",
    ),
    (400, "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for this model"),
    (400, "max_tokens must be at least 1, got -1."),
    (400, "max_tokens must be at least 1, got 0."),
    (400, "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 4 instead."),
    (500, "`max_new_tokens` must be greater than 0, but is 0."),  # transformers 5.24, capture transformers
    (400, "Range of max_tokens should be [1, 8192]"),
    # Limits over time
    (
        400,  # Groq's own status is 413
        (
            "Request too large for model `llama-3.3-70b-versatile` in organization `org_x` service tier `on_demand` on tokens "
            "per minute (TPM): Limit 12000, Requested 14137, please reduce your message size and try again."
        ),
    ),
    (
        429,
        (
            "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389. The input or output tokens "
            "must be reduced in order to run successfully."
        ),
    ),
    (429, "This model's maximum context length is 8192 tokens."),
    (400, "ThrottlingException: Too many tokens, please wait before trying again."),
    (503, "Rate limit reached; the maximum context length is 8192 tokens for free users"),
    (400, "You exceeded your current quota, please check your plan and billing details."),
    # Limits of one field, and of counts
    (
        400,
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 226 instead.",
    ),
    (
        400,
        "Invalid 'input[22].content': array too long. Expected an array with maximum length 0, but got an array with length 1 instead.",
    ),
    (
        400,
        (
            "litellm.ContextWindowExceededError: OpenAIException - Invalid 'input[0].content': string too long. Expected a "
            "string with maximum length 10485760, but got a string with length 11000000 instead."
        ),
    ),
    (400, "At most 1 image(s) may be provided in one prompt."),
    (400, "You set image=1 (or defaulted to 1) in `--limit-mm-per-prompt`, but found 2 items in the same prompt."),
    (400, "Too many tools: the maximum number of tools is 128."),
    (400, "Invalid 'metadata': too many properties. Expected an object with at most 16 properties."),
    (400, "The input (fields: 3) is longer than allowed."),
    (400, "Request body is too large"),
    (400, "Request exceeds the maximum size"),
    (500, "input (3926 tokens) is too large to process. increase the physical batch size (current batch size: 2048)"),
    (500, "litellm.InternalServerError: context_window_fallbacks=None. fallbacks=None."),
    # Sentences of the client, quoted
    (
        422,
        '[{"type":"string_type","loc":["body","input"],"msg":"x","input":"prompt is too long: 9 tokens > 8 maximum"}]',
    ),
    (400, "2 validation errors:\n  {'loc': 'body.input', 'input': \"Response with id 'resp_x' not found.\"}"),
    (404, "[{'msg': 'x', 'input': \"Item with id 'rs_x' not found.\"}]"),
    # Something else that is not there
    (404, "The model `nope/nope` does not exist. Valid aliases: qwen3-toy."),  # capture vllm
    (404, "model 'qwen3' not found"),
    (404, "Model 'granite' not found. Use 'client.models.list()' to list available models."),
    (404, "The requested model 'x' does not exist. Response not found."),
    (404, "Not Found"),
    (404, "File Not Found"),
    (404, "404 page not found"),
    (404, "Invalid URL (POST /v1/responses)"),
    (404, "Conversation with id 'conv_1' not found."),
    (404, "Conversation 'conv_1' not found."),
    (404, "Vector store with id 'vs_1' not found."),
    (404, "File with id 'file-1' not found."),
    (400, "No tool call found for function call output with call_id call_1."),
    # State that is refused, or there and not as it should be
    (400, "llama.cpp does not support 'previous_response_id'."),
    (400, "Previous response cannot be used for this organization due to Zero Data Retention."),
    (400, "Invalid 'response_id': 'x'. Expected an ID that begins with 'resp'."),
    (400, "Item with id 'rs_0f3a' of type 'reasoning' was provided without its required following item."),
    (400, "Duplicate item found with id rs_0f3a. Remove duplicate items from your input and try again."),
    (400, "The encrypted content could not be verified."),
    (401, "Response with id 'resp_x' not found."),
]


def refused(message: str, status: int = 400, code: str | None = None, kind: str = "t") -> UpstreamRefused:
    """A refusal as :mod:`proxy.protocol.refusals` would have read it."""
    return UpstreamRefused(message, status=status, type=kind, code=code, param="p", headers={"x-request-id": "r1"})


def brief(value: object) -> str:
    """A sentence's beginning, for ids."""
    return f"{value.profile}-{value.message[:40]}" if isinstance(value, Said) else str(value)[:40]


@pytest.mark.parametrize("said", OVERFLOWS, ids=brief)
@pytest.mark.parametrize("generic", [False, True], ids=["own", "generic"])
def test_overflow_is_known_by_its_sentence(said: Said, generic: bool) -> None:  # noqa: FBT001
    """By the backend's own profile, and by the one that must work in front of any."""
    error = diagnose(refused(said.message, said.status), PROFILES["generic" if generic else said.profile])
    assert type(error) is ContextOverflow
    assert (error.code, error.message, error.status) == ("context_length_exceeded", said.message, said.status)
    assert (error.type, error.param, error.headers) == ("t", "p", {"x-request-id": "r1"})


@pytest.mark.parametrize("said", LOST_RESPONSES, ids=brief)
@pytest.mark.parametrize("generic", [False, True], ids=["own", "generic"])
def test_lost_response_is_known_by_its_sentence(said: Said, generic: bool) -> None:  # noqa: FBT001
    """And gets the code and param that clients recover by, which vLLM and others do not send."""
    error = diagnose(refused(said.message, said.status, "404"), PROFILES["generic" if generic else said.profile])
    assert type(error) is UpstreamForgot
    assert (error.code, error.param) == ("previous_response_not_found", "previous_response_id")
    assert (error.message, error.status, error.type) == (said.message, said.status, "t")
    assert error.headers == {"x-request-id": "r1"}


@pytest.mark.parametrize("said", LOST_ITEMS, ids=brief)
@pytest.mark.parametrize("generic", [False, True], ids=["own", "generic"])
def test_lost_item_is_the_same_kind_with_another_code(said: Said, generic: bool) -> None:  # noqa: FBT001
    """The cure is the same, but a client that named no previous response must not be told that it did."""
    error = diagnose(refused(said.message, said.status), PROFILES["generic" if generic else said.profile])
    assert type(error) is UpstreamForgot
    assert (error.code, error.param, error.message) == ("item_not_found", "input", said.message)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
@pytest.mark.parametrize(("status", "message"), NEAR_MISSES, ids=brief)
def test_near_miss_stays_what_it_is(status: int, message: str, profile: Profile) -> None:
    """The refusal itself comes back: other limits, other things that are missing, sentences of the client's."""
    refusal = refused(message, status)
    assert diagnose(refusal, profile) is refusal


@pytest.mark.parametrize(
    "other",
    [
        "(on tokens per min)",
        "(TPM)",
        "(rate_limit_exceeded)",
        "(Too Many Requests)",
        "(ThrottlingException)",
        "(string_above_max_length)",
        "(array too long)",
    ],
)
def test_other_limit_beside_a_sentence_outweighs_it(other: str) -> None:
    """A sentence about the context may be a part of one about something else; then nobody compacts for it."""
    refusal = refused(f"{OVERFLOWS[0].message} {other}")
    assert diagnose(refusal, PROFILES["generic"]) is refusal


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_codes_are_believed_as_they_come(profile: Profile) -> None:
    """Whatever the status and the words; llama.cpp says it in `type`. An error event may name no status at all."""
    for code, kind in (("context_length_exceeded", "t"), (None, "exceed_context_size_error")):
        assert type(diagnose(refused("no", 502, code, kind), profile)) is ContextOverflow
    lost = refusals.from_event(b'{"type":"error","code":"previous_response_not_found","message":"gone"}')
    assert type(diagnose(lost, profile)) is UpstreamForgot
    other = refused("no", 400, "invalid_prompt")
    assert diagnose(other, profile) is other


def test_sentences_of_other_backends_are_not_believed() -> None:
    """A profile knows its own backend; the union is for those that may be anything."""
    refusal = refused("prompt is too long: 213462 tokens > 200000 maximum")
    assert diagnose(refusal, PROFILES["vllm"]) is refusal
    assert type(diagnose(refusal, PROFILES["generic"])) is ContextOverflow
    stateless = refused("Response with id 'resp_x' not found.", 404)
    assert diagnose(stateless, PROFILES["llamacpp"]) is stateless


def test_captured_errors_are_told_apart() -> None:
    """Of all that real backends answered, only the prompts that were too long are diagnosed, by either profile."""
    for file in sorted(CAPTURES.glob("*/errors.json")):
        own = PROFILES.get(file.parent.name, PROFILES["generic"])
        for name, answer in json.loads(file.read_text()).items():
            refusal = refusals.from_answer(answer["status"], answer["headers"], answer["body"].encode())
            for profile in (own, PROFILES["generic"]):
                found = diagnose(refusal, profile)
                wanted = ContextOverflow if name == "context-overflow" else UpstreamRefused
                assert type(found) is wanted, f"{file.parent.name}: {name}"


def test_diagnosis_of_a_diagnosis_is_the_same() -> None:
    """Nothing is lost by asking twice."""
    for message in (OVERFLOWS[0].message, LOST_RESPONSES[1].message, LOST_ITEMS[0].message):
        once = diagnose(refused(message, 400), PROFILES["generic"])
        again = diagnose(once, PROFILES["generic"])
        assert (type(again), again.code, again.param, str(again)) == (type(once), once.code, once.param, str(once))


# The table of patterns


def patterns_of(signs: Signs) -> set[re.Pattern[str]]:
    """All of them."""
    return {*signs.overflow, *signs.lost_response, *signs.lost_item}


def test_every_profile_has_signs() -> None:
    """And there are no others; an unknown profile is taken for anything."""
    assert set(SIGNS) == set(PROFILES)
    assert type(diagnose(refused(OVERFLOWS[0].message), Profile("new"))) is ContextOverflow


def test_generic_knows_all_that_any_profile_knows() -> None:
    """It works in front of any of them."""
    for signs in SIGNS.values():
        assert patterns_of(signs) <= patterns_of(SIGNS["generic"])
        assert signs.overflow_statuses <= SIGNS["generic"].overflow_statuses
        assert signs.lost_statuses <= SIGNS["generic"].lost_statuses


@pytest.mark.parametrize("name", SIGNS)
def test_every_pattern_has_a_sentence(name: str) -> None:
    """A pattern that none of a profile's own sentences needs has no origin."""
    own = [
        said.message
        for said in (*OVERFLOWS, *LOST_RESPONSES, *LOST_ITEMS)
        if name in {said.profile, "generic", "litellm"}
    ]
    unused = [pattern.pattern for pattern in patterns_of(SIGNS[name]) if not any(map(pattern.search, own))]
    assert unused == []


@pytest.mark.parametrize("said", [*OVERFLOWS, *LOST_RESPONSES, *LOST_ITEMS], ids=brief)
def test_every_sentence_has_an_origin(said: Said) -> None:
    """So that it can be looked up again when a backend changes its words."""
    assert said.origin


@pytest.mark.parametrize("pattern", sorted({p.pattern for signs in SIGNS.values() for p in patterns_of(signs)}))
def test_patterns_take_bounded_steps(pattern: str) -> None:
    """No open repeat, no repeated group, and every bound below 1,000: a start costs so much and no more."""
    plain = re.sub(r"\[[^\]]*\]", "C", re.sub(r"\\.", "E", pattern))
    assert not re.search(r"[*+]|\{\d+,\}", plain)
    assert not re.search(r"\)\{", plain)
    assert all(int(bound) < 1000 for bound in re.findall(r"\{(?:\d+,)?(\d+)\}", plain))


@pytest.mark.parametrize("said", [OVERFLOWS[0], LOST_RESPONSES[0], LOST_ITEMS[0]], ids=brief)
def test_only_the_beginning_of_a_message_is_read(said: Said) -> None:
    """The starts have a bound too, so a message of any length costs the same; and what is cut off says nothing."""
    near = refused(" " * 3000 + said.message, said.status)
    far = refused(" " * 100_000 + said.message, said.status)
    assert diagnose(near, PROFILES["generic"]) is not near
    assert diagnose(far, PROFILES["generic"]) is far


@pytest.mark.parametrize("unit", ["response with id '", "9", "item with id x", "[{", "maximum context length is 1,"])
def test_hostile_message_is_read_and_kept_whole(unit: str) -> None:
    """Beginnings of sentences over and over, and a message that is handed on uncut."""
    message = unit * (100_000 // len(unit))
    for profile in PROFILES.values():
        assert str(diagnose(refused(message, 400), profile)) == message
