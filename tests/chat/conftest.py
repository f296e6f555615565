"""A checkpoint directory with a small tokenizer."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from gesso.chat.tokenizer import Tokenizer

SPECIALS = (
    ["<pad>", "<eos>", "<bos>", "<unk>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>"]
    + ["<tool_response|>", '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>"]
)  # fmt: skip


def write_vocabulary(directory: Path) -> None:
    """Write a small Gemma-like pipeline: spaces as ▁, BPE with byte fallback, a post-processor that adds bos."""
    letters = ["▁", "\n", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?!"]
    pieces = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "th", "the", "▁the"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", vocab["<bos>"])])
    core.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    core.save(str(directory / "tokenizer.json"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_vocabulary(tmp_path)
    return tmp_path


@pytest.fixture
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_directory(directory)
