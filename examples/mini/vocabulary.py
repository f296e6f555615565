"""Learn a small vocabulary: BPE within lines, with byte tokens for all other characters.

Special tokens have the ids of the real vocabulary, so templates, stopping and parsing work unchanged. No merge crosses
a line break: cutting a text at a line break and tokenizing both parts gives the same tokens. Infilling depends on this.
"""

import json
import string
from collections.abc import Iterable
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from gesso.errors import InputError

# The tokens of the chat format, at their ids in the real vocabulary.
SPECIALS = {
    0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>",
    49: "<tool_call|>", 50: "<|tool_response>", 51: "<tool_response|>", 52: '<|"|>', 98: "<|think|>",
    100: "<|channel>", 101: "<channel|>", 105: "<|turn>", 106: "<turn|>",
}  # fmt: skip
# The markers of eval/python_infill.py, at ids that are no text in the real vocabulary.
NAMED = SPECIALS | {107: "<|fim_prefix|>", 108: "<|fim_suffix|>", 109: "<|fim_middle|>"}
BYTES = 128  # the id of byte 0
RESERVED = [NAMED.get(i, f"<unused{i}>") for i in range(BYTES)] + [f"<0x{byte:02X}>" for byte in range(256)]
ALPHABET = [*string.printable[:95], "\n", "\t"]  # all other characters are spelled in bytes
CELLS = [(" ", digit) for digit in string.digits]  # a cell of a grid is one token in every position

# A word has the same tokens in every position, without the space before it, so that copying a word copies its tokens.
# These words include their spaces: they are nearly half of all words and are rarely copied.
FREQUENT_WORDS = (
    "import|from|def|class|return|if|elif|else|for|while|in|is|not|and|or|with|as|raise|except|assert|yield|lambda|del|"
    "the|of|to|a|an|on|by|at|be|are|it|this|that"
)
# A line is split into these. A character that matches none of them, such as a control character, is a piece by itself.
PIECES = "|".join(
    (
        r"\n",
        r" {2,}",  # indentation, apart from the word after it
        r"\t+",
        r" ?[0-9]",
        rf" ?(?:{FREQUENT_WORDS}) ",
        r"self\.",
        r"[A-Za-z_]+",
        r" ?[!-/:-@\[-^`{-~]+ ?",
        r" ?[^\x00-\x7F]+",
    )
)


def learn(texts: Iterable[str], size: int = 4096) -> str:
    """Return a `tokenizer.json` of exactly `size` tokens, special and byte tokens included."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(PIECES), behavior="isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=RESERVED,
        initial_alphabet=ALPHABET,
        limit_alphabet=len(ALPHABET),
        max_token_length=32,
    )
    core.train_from_iterator(texts, trainer)
    state: dict[str, Any] = json.loads(core.to_str())
    characters = [piece for piece in state["model"]["vocab"] if len(piece) == 1]
    vocabulary = {piece: i for i, piece in enumerate((*RESERVED, *characters))}
    merges: list[tuple[str, str]] = []
    for left, right in dict.fromkeys((*CELLS, *map(tuple, state["model"]["merges"]))):
        if len(vocabulary) < size:
            merges.append((left, right))
            vocabulary.setdefault(left + right, len(vocabulary))
    if len(vocabulary) != size:
        raise InputError(f"cannot learn {size} tokens: these texts give only {len(vocabulary)}; give more text")
    state["added_tokens"] = [_special(i, piece) for i, piece in NAMED.items()]
    state["model"] |= {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    state["model"] |= {"vocab": vocabulary, "merges": merges}
    state["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    return json.dumps(state, ensure_ascii=False)


def _special(i: int, piece: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": i, "content": piece} | flags
