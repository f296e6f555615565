"""tokenizer.json, tokenizer_config.json and the chat template from the metadata of a GGUF file.

llama.cpp's converter stores tokens, their types and merges. The rest of Gemma's tokenizer.json is always the same, and
is rebuilt here. One thing is lost: most tokens that tokenizer.json adds without marking them special, such as runs of
line breaks, are stored as normal tokens. So a whole tokenizer.json takes precedence: one in the metadata, where `gesso
quantize` stores it, or one beside the file.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from gesso.checkpoint.gguf.file import GgufFile
from gesso.checks import shown
from gesso.errors import CheckpointError
from gesso.files import parse_json

WHOLE = "tokenizer.huggingface.json"  # key of a whole tokenizer.json
MODEL = "gemma4"
CONTROL, USER_DEFINED = 3, 4  # types of tokens
# The converter marks these special tokens as user-defined, so that llama.cpp prints them.
PRINTED = frozenset(
    ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>')
)
SPACE = "▁"  # stands for a space in tokens


def tokenizer_json(file: GgufFile) -> str:
    """Return the content of tokenizer.json."""
    whole = file.metadata.get(WHOLE)
    if isinstance(whole, str):
        return whole
    tokens, types, merges = (file.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges"))
    model = file.metadata.get("tokenizer.ggml.model")
    if model != MODEL:
        raise _lacking(file, f"tokenizer.ggml.model is {shown(model)}, expected {MODEL!r}")
    if not isinstance(tokens, list) or not tokens:
        raise _lacking(file, "tokenizer.ggml.tokens is missing")
    if not isinstance(merges, list):
        raise _lacking(file, "tokenizer.ggml.merges is missing")
    if not isinstance(types, np.ndarray) or len(types) != len(tokens):
        raise _lacking(file, f"tokenizer.ggml.token_type does not have a type for each of {len(tokens):,} tokens")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise _lacking(file, "two tokens of tokenizer.ggml.tokens have the same name")
    pairs = [merge.split(" ") for merge in merges]
    if wrong := [p for p in pairs if len(p) != 2 or any(t not in vocabulary for t in (*p, "".join(p)))]:
        raise _lacking(file, f"tokenizer.ggml.merges has {shown(' '.join(wrong[0]))}, which is not a pair of tokens")
    added = [
        _added(i, tokens[i], bool(types[i] == CONTROL) or tokens[i] in PRINTED)
        for i in np.flatnonzero(np.isin(types, (CONTROL, USER_DEFINED))).tolist()
    ]
    return json.dumps(_gemma(vocabulary, pairs, added), ensure_ascii=False)


def _lacking(file: GgufFile, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{file.path} does not have a tokenizer that gesso can use: {problem}; "
        f"put the tokenizer.json of the original checkpoint into {file.path.parent}"
    )


def _added(i: int, token: str, special: bool) -> dict[str, Any]:
    rest = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": i, "content": token, **rest, "special": special}


def _gemma(vocabulary: Mapping[str, int], merges: list[list[str]], added: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def token_names(text: str, source: str) -> dict[int, str]:
    """Return the names of the tokens in a tokenizer.json by their number; those that are no names are left out."""
    try:
        data = parse_json(text)
        names = {i: name for name, i in data["model"]["vocab"].items()}
        names |= {token["id"]: token["content"] for token in data.get("added_tokens") or []}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{source} cannot be read as a tokenizer: {shown(error)}; download it again") from None
    return {i: name for i, name in names.items() if isinstance(i, int) and isinstance(name, str)}


def tokenizer_config(file: GgufFile, tokens: Mapping[int, str]) -> dict[str, Any]:
    """Return the content of tokenizer_config.json: the tokens that have a role."""
    roles = {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk", "mask": "mask"}
    ids = {role: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key, role in roles.items()}
    return {f"{role}_token": tokens[i] for role, i in ids.items() if isinstance(i, int) and i in tokens}


def chat_template(file: GgufFile) -> str | None:
    template = file.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None
