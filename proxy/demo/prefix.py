"""A simulated prefix cache: how much of a prompt a real server would not have had to compute again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

BYTES_PER_TOKEN: Final = 4
"""What a token is taken to be; a simulation has no tokenizer."""

_MAX_PROMPTS: Final = 64
_MAX_BYTES: Final = 32 * 2**20


class PrefixCache:
    """The prompts that were seen last, within 64 prompts and 32 MiB.

    A prompt that goes on from an older one takes its place, so that a conversation counts once.
    """

    def __init__(self) -> None:
        self._prompts: OrderedDict[bytes, None] = OrderedDict()  # the one used last at the end
        self._bytes = 0

    def take(self, prompt: bytes) -> int:
        """Look a prompt up, and remember it.

        Returns:
            How many bytes at its beginning, at most all, some earlier prompt began with as well.
        """
        longest, nearest = 0, b""
        for known in self._prompts:
            length = common_prefix(known, prompt)
            if length > longest:
                longest, nearest = length, known
        if longest == len(prompt):
            self._prompts.move_to_end(nearest)
            return longest
        if nearest and longest == len(nearest):
            self._drop(nearest)
        self._prompts[prompt] = None
        self._bytes += len(prompt)
        while len(self._prompts) > _MAX_PROMPTS or (self._bytes > _MAX_BYTES and len(self._prompts) > 1):
            self._drop(next(iter(self._prompts)))
        return longest

    def forget(self) -> None:
        """Remember nothing, as after a restart."""
        self._prompts.clear()
        self._bytes = 0

    def _drop(self, prompt: bytes) -> None:
        del self._prompts[prompt]
        self._bytes -= len(prompt)


def tokens(length: int) -> int:
    """Tokens in so many bytes, rounded up."""
    return -(-length // BYTES_PER_TOKEN)


def common_prefix(one: bytes, other: bytes) -> int:
    """How many bytes two texts have in common at their beginnings.

    By bisection: comparing slices is done in C, while a loop over bytes would take longer than the rest of a turn.
    """
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
