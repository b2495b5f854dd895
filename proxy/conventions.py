"""Names of span attributes.

Those of OpenTelemetry's GenAI conventions have the status "development": they moved to a repository of their own, and the
constants of the Python package are deprecated. So they stand here, and change here.
"""

from __future__ import annotations

from typing import Final

# Of the GenAI conventions (open-telemetry/semantic-conventions-genai)

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

# Of the general conventions

ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
HTTP_METHOD: Final = "http.request.method"
HTTP_STATUS: Final = "http.response.status_code"
URL_PATH: Final = "url.path"
USER_AGENT: Final = "user_agent.original"

# Our own

CONNECTION: Final = "slipstream.connection_id"
TURN: Final = "slipstream.turn"
LANE: Final = "slipstream.lane"
OUTCOME: Final = "slipstream.outcome"
PREVIOUS: Final = "slipstream.previous_response_id"
CACHE: Final = "slipstream.cache.result"
CACHE_REASON: Final = "slipstream.cache.reason"
DEPTH: Final = "slipstream.depth"
FRAME_BYTES: Final = "slipstream.frame_bytes"
UPSTREAM_BYTES: Final = "slipstream.upstream_bytes"
REPLAYED_BYTES: Final = "slipstream.replayed_bytes"
REPLAYED_ITEMS: Final = "slipstream.replayed_items"
NEW_ITEMS: Final = "slipstream.new_items"
SENT_BYTES: Final = "slipstream.sent_bytes"
EVENTS: Final = "slipstream.events"
PROXY_SECONDS: Final = "slipstream.proxy_seconds"
QUEUE_SECONDS: Final = "slipstream.queue_seconds"
REUSED: Final = "slipstream.upstream_reused"
SOURCE: Final = "slipstream.source"
ERROR_SOURCE: Final = "slipstream.error_source"
