"""The files of a Hugging Face directory that are not weights, from a GGUF file."""

import json
from pathlib import Path

from gesso.checkpoint.gguf import metadata, tokenizer
from gesso.checkpoint.gguf.file import read
from gesso.errors import CheckpointError
from gesso.files import read_text

# Files beside the GGUF file that count more than its metadata: a converter drops part of what they say.
BESIDE = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def companions(path: Path) -> dict[str, str]:
    """Return the content of config.json, generation_config.json and the tokenizer files by file name."""
    file = read(path)
    metadata.check_architecture(file)
    beside = {
        name: read_text(path.with_name(name), error=CheckpointError) for name in BESIDE if path.with_name(name).exists()
    }
    own = "tokenizer.json" not in beside
    vocabulary = tokenizer.tokenizer_json(file) if own else beside["tokenizer.json"]
    tokens = tokenizer.token_names(vocabulary, str(path if own else path.with_name("tokenizer.json")))
    found = {
        "config.json": json.dumps(metadata.config(file, tokens), indent=2) + "\n",
        "generation_config.json": json.dumps(metadata.generation_config(file, tokens), indent=2) + "\n",
        "tokenizer.json": vocabulary,
        "tokenizer_config.json": json.dumps(tokenizer.tokenizer_config(file, tokens), indent=2) + "\n",
    }
    if template := tokenizer.chat_template(file):
        found["chat_template.jinja"] = template
    return found | beside
