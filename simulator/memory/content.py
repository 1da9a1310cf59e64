"""Keys of the contents of blocks, equal for equal tokens: they show which blocks prompts have in common.

A key stands for the whole text up to the end of its block, as the chained hashes of an engine do. There are three
kinds, in separate ranges of numbers: blocks of one request alone (`own_keys`), blocks of a named text (a prefix, a
whole prompt), and chains of content ids. The first two are numbered and cannot collide; a chain is hashed to 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_NAMED = 32  # bits for the number of a block within a text
_CHAIN = 1 << 96


def own_keys(index: int, first: int, end: int) -> range:
    """Return the keys of the blocks from `first` to before `end` of a text that only request `index` has."""
    base = index + 1 << _NAMED
    return range(base + first, base + end)


def _text_key(text: int, block: int) -> int:
    return -(text + 1 << _NAMED) - block


class Content(NamedTuple):
    """Origin of a prompt's tokens. Tokens that none of the fields covers are the request's own.

    `texts` are (name, tokens): the first `tokens` tokens are those of that text; shorter texts come first.
    `hash_ids`, small numbers, name the content of every `hash_block` tokens. `parent` is a request: this prompt starts
    with its prompt and output. Hash ids take precedence over texts, and texts over the parent.
    """

    texts: tuple[tuple[int, int], ...] = ()
    hash_ids: Sequence[int] = ()
    hash_block: int = 1
    parent: int | None = None


class Contents(NamedTuple):
    """Contents and lengths of requests, by index. Refused requests are included: they may be parents of others."""

    contents: Sequence[Content]
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]

    def shared_keys(self, index: int, block_size: int, lookahead: int = 0) -> list[int]:
        """Return the keys of the leading blocks of request `index` that other requests may have, too.

        `lookahead` 1 counts the token after a block among its content, as EAGLE's cache does.
        """
        descent = [index]  # from the request to its oldest ancestor
        while (ancestor := self._parent(descent[-1])) is not None:
            descent.append(ancestor)
        parent = descent.pop()
        keys = self._prompt_keys(parent, block_size, lookahead)
        for child in reversed(descent):
            length = self.prompt_tokens[parent] + self.output_tokens[parent]
            blocks = _whole_blocks(min(self.prompt_tokens[child], length), block_size, lookahead)
            del keys[blocks:]
            keys.extend(own_keys(parent, len(keys), blocks))
            parent = child
        return keys

    def _parent(self, index: int) -> int | None:
        content = self.contents[index]
        return None if content.hash_ids or content.texts else content.parent

    def _prompt_keys(self, index: int, size: int, lookahead: int) -> list[int]:
        content, prompt = self.contents[index], self.prompt_tokens[index]
        if content.hash_ids:
            tokens = min(prompt, len(content.hash_ids) * content.hash_block)
            return _chain(content, size, _whole_blocks(tokens, size, lookahead), lookahead)
        return text_keys(content.texts, prompt, size, lookahead)


def text_keys(texts: Sequence[tuple[int, int]], prompt: int, size: int, lookahead: int = 0) -> list[int]:
    """Return the keys of the leading blocks of a prompt that starts with `texts`; see `Content`."""
    keys: list[int] = []
    for text, tokens in texts:
        blocks = _whole_blocks(min(prompt, tokens), size, lookahead)
        keys.extend(_text_key(text, block) for block in range(len(keys), blocks))
    return keys


def _whole_blocks(tokens: int, size: int, lookahead: int) -> int:
    return max(0, (tokens - lookahead) // size)


def _chain(content: Content, size: int, blocks: int, lookahead: int) -> list[int]:
    ids, width = tuple(content.hash_ids), content.hash_block
    keys, key = [], 0
    for start in range(0, blocks * size, size):
        last = start + size + lookahead - 1
        key = _CHAIN + (hash((key, *ids[start // width : last // width + 1])) & 0xFFFFFFFFFFFFFFFF)
        keys.append(key)
    return keys
