"""The files of a Hugging Face directory that are not weights, from a GGUF file."""

import json
from pathlib import Path

from gesso.checkpoint.gguf import metadata, tokenizer
from gesso.checkpoint.gguf.file import read
from gesso.errors import CheckpointError
from gesso.files import read_text

# Files in the same directory that override the metadata of the GGUF file: a converter drops part of their content.
OVERRIDING = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def companions(path: Path) -> dict[str, str]:
    """Return the content of config.json, generation_config.json and the tokenizer files by file name."""
    file = read(path)
    metadata.check_architecture(file)
    overriding = {
        name: read_text(path.with_name(name), error=CheckpointError)
        for name in OVERRIDING
        if path.with_name(name).exists()
    }
    if "tokenizer.json" in overriding:
        vocabulary = overriding["tokenizer.json"]
        vocabulary_path = path.with_name("tokenizer.json")
    else:
        vocabulary = tokenizer.tokenizer_json(file)
        vocabulary_path = path
    tokens = tokenizer.token_names(vocabulary, str(vocabulary_path))
    from_metadata = {
        "config.json": json.dumps(metadata.config(file, tokens), indent=2) + "\n",
        "generation_config.json": json.dumps(metadata.generation_config(file, tokens), indent=2) + "\n",
        "tokenizer.json": vocabulary,
        "tokenizer_config.json": json.dumps(tokenizer.tokenizer_config(file, tokens), indent=2) + "\n",
    }
    if template := tokenizer.chat_template(file):
        from_metadata["chat_template.jinja"] = template
    return from_metadata | overriding
