"""Convert text to token ids and back, and conversations to text in the model's chat format.

The vocabulary is the `tokenizer.json` of a Hugging Face directory. The chat format is the checkpoint's own template, or
`chat_template.jinja` in this directory. `template` renders it in a sandbox.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import tokenizers

from gesso.chat.healing import Healer
from gesso.chat.image_parts import as_text, for_template, images_of
from gesso.chat.messages import check_messages, check_tools
from gesso.chat.prompt import Prompt, with_soft_tokens
from gesso.errors import CheckpointError, GessoError, InputError
from gesso.files import read_bytes, read_json, read_text
from gesso.images.image import Image

# Fill in the middle: the marker tokens before the prefix, the suffix and the middle.
FILL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
TEMPLATE_LIMIT = 1 << 20  # bytes; published templates are smaller than 100 kB
# The roles of special tokens, with the names that Gemma's have. The last three are those of images: the one that a
# template writes where an image is, and those before and after its soft tokens.
ROLES = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
}
IMAGE_ROLES = ("image_token", "boi_token", "eoi_token")
_OTHER_FILES = "use the tokenizer files of another source"
_UNDECODABLE = ("the tokenizer cannot decode these tokens", _OTHER_FILES)
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


class Tokenizer:
    def __init__(
        self, core: tokenizers.Tokenizer, files: dict[str, Path], names: dict[str, str], template: str
    ) -> None:
        self._core = core
        self.names = names  # of the special tokens in ROLES that the checkpoint has
        self._template_source = template
        self.files = files
        self.vocab_size: int = core.get_vocab_size(with_added_tokens=True)
        self.special_ids = frozenset(i for i, token in core.get_added_tokens_decoder().items() if token.special)
        # Tokens of single bytes, if the vocabulary has them. A run of them is decoded as a whole or not at all.
        self.byte_ids = frozenset(i for byte in range(256) if (i := self.id_of(f"<0x{byte:02X}>")) is not None)
        self.bos_id, self.eos_id, self.pad_id = (
            self.id_of(names[role]) if role in names else None for role in ("bos_token", "eos_token", "pad_token")
        )

    @classmethod
    def from_directory(cls, directory: Path) -> "Tokenizer":
        """Read the tokenizer files of a Hugging Face directory."""
        directory = Path(directory)
        files = {name: directory / name for name in FILES if (directory / name).exists()}
        if "tokenizer.json" not in files:
            raise CheckpointError(
                f"no tokenizer.json in {directory}: download the checkpoint's tokenizer files, "
                "or point to the directory that has them"
            )
        try:
            data = read_bytes(files["tokenizer.json"])
        except OSError as error:
            raise CheckpointError(f"{files['tokenizer.json']} cannot be read: {error.strerror}") from None
        with _library_errors(CheckpointError, f"{files['tokenizer.json']} cannot be read", "download it again"):
            core = tokenizers.Tokenizer.from_buffer(data)
        config, specials = (
            read_json(files[name]) if name in files else {}
            for name in ("tokenizer_config.json", "special_tokens_map.json")
        )
        names = _special_names(core, specials | config, directory)
        return cls(core, files, names, _find_template(files, config))

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        """Return the token ids of a text. Special tokens in the text become special tokens, as in `transformers`."""
        ids: list[int] = self._encoded(text).ids
        if bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def starts(self, text: str) -> list[int]:
        """Return the index of the first character of each token of `encode(text, bos=False)`.

        Tokens that are bytes of the same character share its index.
        """
        return [start for start, _ in self._encoded(text).offsets]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        checked = self._checked(ids)
        with _library_errors(InputError, *_UNDECODABLE):
            return str(self._core.decode(checked, skip_special_tokens=not special))

    def text_of(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of a model's tokens. Ids beyond the tokenizer are skipped: many models pad embeddings."""
        return self.decode([token for token in tokens if token < self.vocab_size], special=special)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token. A single byte of a longer character appears by its name, such as <0xE2>."""
        checked = self._checked(ids)
        with _library_errors(InputError, *_UNDECODABLE):
            texts = self._core.decode_batch([[i] for i in checked], skip_special_tokens=False)
        return [
            text if text and "\ufffd" not in text else str(self._core.id_to_token(i) or "")
            for i, text in zip(checked, texts, strict=True)
        ]

    @cached_property
    def healer(self) -> Healer:
        pieces = enumerate(self.pieces(range(self.vocab_size)))
        return Healer((piece for i, piece in pieces if i not in self.special_ids), self.starts)

    @cached_property
    def longest_piece(self) -> int:
        """The most characters of a token. A text has at least length / longest_piece tokens."""
        return max(map(len, self._core.get_vocab(with_added_tokens=True)))

    def id_of(self, token: str) -> int | None:
        token_id: int | None = self._core.token_to_id(token)
        return token_id

    @cached_property
    def image_ids(self) -> tuple[int, int, int] | None:
        """The token that a template writes where an image is, and those before and after its soft tokens."""
        mark, begin, end = (self.id_of(self.names[role]) if role in self.names else None for role in IMAGE_ROLES)
        return None if mark is None or begin is None or end is None else (mark, begin, end)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool = False,
        generation_prompt: bool = True,
    ) -> str:
        """Return a conversation as text in the model's chat format, with the image token where an image is.

        A text that spells the image token gets an invisible character, so that it stays text.
        """
        return self._render(check_messages(messages), tools, thinking, generation_prompt)

    def _render(
        self,
        checked: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        thinking: bool,
        generation_prompt: bool = True,
    ) -> str:
        images, mark = images_of(checked), self.names.get("image_token")
        shown = _without(mark, [{**message, "content": for_template(message["content"])} for message in checked])
        variables = {
            "messages": shown,
            "tools": _without(mark, check_tools(tools)),
            "add_generation_prompt": generation_prompt,
            "enable_thinking": thinking,
            **self.names,
        }
        if not images:
            return self._rendered(variables)
        if mark is None:
            raise InputError("this model sees no images: its tokenizer has no image token; leave the images out")
        in_text = [{**message, "content": as_text(message["content"], mark)} for message in shown]
        problem = ""
        for form in (shown, in_text):  # templates that know images read content parts; others know text only
            try:
                text = self._rendered(variables | {"messages": form})
            except InputError as error:
                problem = str(error)
                continue
            if text.count(mark) == len(images):
                return text
            problem = f"the chat template shows {text.count(mark)} of {len(images)}"
        raise InputError(f"these images cannot be part of the prompt: {problem}; put them into messages of the user")

    def _rendered(self, variables: Mapping[str, Any]) -> str:
        from jinja2.exceptions import SecurityError

        from gesso.chat.template import render
        from gesso.chat.template_budget import Runaway

        template = self._template
        try:
            return render(template, variables)
        except SecurityError as error:
            raise CheckpointError(f"the chat template was stopped: it tried to leave its sandbox: {error}") from error
        except Runaway as error:
            raise InputError(
                f"the chat template was stopped: {error}; shorten the conversation or use another template"
            ) from None
        except Exception as error:  # a template is a program and can raise anything
            raise InputError(f"the chat template cannot render these messages: {str(error)[:1000]}") from error

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool = False,
    ) -> Prompt:
        """Return a conversation as token ids with its images, which have been read: see `gesso.chat.image_parts`."""
        checked = check_messages(messages)
        ids = self.encode(self._render(checked, tools, thinking), bos=False)  # the template writes the bos token itself
        images = images_of(checked)
        return Prompt(self.with_images(ids, images), images)

    def with_images(self, ids: Sequence[int], images: Sequence[Image]) -> list[int]:
        """Return the token ids of a rendered conversation with its images in place of image tokens."""
        if not images:
            return list(ids)
        if self.image_ids is None:
            raise InputError("this model sees no images: its tokenizer lacks the tokens for them")
        count = ids.count(self.image_ids[0])
        if count != len(images):
            raise InputError(f"the prompt has {count} image tokens for {len(images)} images; expected one for each")
        return with_soft_tokens(ids, images, *self.image_ids)

    def warm_up(self) -> None:
        """Compile the chat template now instead of with the first conversation."""
        _ = self._template

    @cached_property
    def _template(self) -> Any:
        from jinja2 import TemplateSyntaxError

        from gesso.chat.template import compiled
        from gesso.chat.template_budget import Runaway

        where = self.files.get("chat_template.jinja", "chat_template in tokenizer_config.json")
        try:
            return compiled(self._template_source)
        except Runaway as error:
            raise CheckpointError(
                f"{where}: the chat template was stopped while it was compiled: {error}; use another template"
            ) from None
        except TemplateSyntaxError as error:
            raise CheckpointError(f"{where}, line {error.lineno}: {error}; download it again") from error
        except Exception as error:  # RecursionError and SyntaxError if it is nested too deeply
            raise CheckpointError(f"{where} cannot be compiled ({str(error)[:1000]}); download it again") from error

    def _encoded(self, text: str) -> tokenizers.Encoding:
        if not isinstance(text, str):
            raise InputError(f"expected text to encode, got {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"character {error.start} of the text is half a surrogate pair, which UTF-8 cannot encode; "
                "decode the source with errors='replace'"
            ) from error
        with _library_errors(InputError, "the tokenizer cannot encode this text", _OTHER_FILES):
            return self._core.encode(text, add_special_tokens=False)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        try:
            checked = [operator.index(i) for i in ids]
        except TypeError as error:
            raise InputError(f"token ids must be integers: {error}") from error
        if wrong := [i for i in checked if not 0 <= i < self.vocab_size]:
            raise InputError(f"token id {wrong[0]} is outside the vocabulary (0 to {self.vocab_size - 1})")
        return checked


@contextmanager
def _library_errors(kind: type[GessoError], problem: str, remedy: str) -> Iterator[None]:
    """Raise errors of the tokenizers library, which are bare Exceptions, as errors of this kind.

    A regular expression that backtracks too often makes the library panic. Its PanicException is no Exception, and has
    no module to import it from.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{problem} ({str(error)[:1000]}); {remedy}") from None


def _without(mark: str | None, value: Any) -> Any:
    """Return JSON data without a special token's name: a zero-width space follows its first character."""
    if mark is None:
        return value
    if isinstance(value, str):
        return value.replace(mark, f"{mark[0]}\u200b{mark[1:]}")
    if isinstance(value, list):
        return [_without(mark, item) for item in value]
    if isinstance(value, dict):
        return {_without(mark, key): _without(mark, item) for key, item in value.items()}
    return value


# --- The files of a checkpoint ---


def _special_names(core: tokenizers.Tokenizer, config: dict[str, Any], directory: Path) -> dict[str, str]:
    names = {}
    for role, usual in ROLES.items():
        # A tokenizer.json alone does not name the roles of tokens; use Gemma's names. An explicit null means no token.
        name = config.get(role, usual if core.token_to_id(usual) is not None else None)
        name = name.get("content") if isinstance(name, dict) else name
        if name is None:
            continue
        if not isinstance(name, str) or core.token_to_id(name) is None:
            if role in IMAGE_ROLES:  # of a model that was made without images
                continue
            raise CheckpointError(
                f"{directory}: {role} is {name!r}, which is not in tokenizer.json; use the files of one checkpoint"
            )
        names[role] = name
    return names


def _find_template(files: dict[str, Path], config: dict[str, Any]) -> str:
    if path := files.get("chat_template.jinja"):
        return read_text(path, TEMPLATE_LIMIT, CheckpointError)
    template = config.get("chat_template")
    if template is None:
        return resources.files("gesso.chat").joinpath("chat_template.jinja").read_text(encoding="utf-8")
    if not isinstance(template, str):
        raise CheckpointError(
            f"{files['tokenizer_config.json']}: chat_template must be one template, not a {type(template).__name__}; "
            "save the template to use as chat_template.jinja"
        )
    if len(template) > TEMPLATE_LIMIT:
        raise CheckpointError(
            f"{files['tokenizer_config.json']}: chat_template is larger than {TEMPLATE_LIMIT:,} characters; shorten it"
        )
    return template
