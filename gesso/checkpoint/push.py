"""Upload an adapter or a checkpoint to the Hugging Face hub: `gesso push DIR owner/name`.

Only files on a list are uploaded: configuration, tokenizer, template and the weights that the index names. So the
state of a run or data beside them never leaves the machine. All files arrive in one commit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gesso.checkpoint.cache import ADAPTER, HubName
from gesso.checkpoint.card import adapter_card, model_card
from gesso.checkpoint.hub import request_headers
from gesso.checkpoint.safetensors import INDEX, weight_files
from gesso.errors import CheckpointError, GessoError, InputError

CARD = "README.md"
# The files of a checkpoint besides its weights, if it has them.
COMPANIONS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "processor_config.json",
    "preprocessor_config.json", INDEX,
)  # fmt: skip


@dataclass(frozen=True)
class Content:
    """The files to upload, and the card of a repository that has none."""

    kind: str  # "adapter" or "model"
    files: list[Path]
    card: str


def push(directory: Path, name: str, *, private: bool = False) -> str:
    """Upload a directory and return the address of the repository, which is created if it does not exist.

    A README.md in the directory is uploaded as it is. Otherwise a model card is written, unless the repository has one.
    """
    parsed = HubName.parse(name)
    if parsed is None or parsed.file:
        raise InputError(f"{name!r} is not a name of the form owner/name")
    content = content_of(directory.expanduser(), name)
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

    with _explained(name):
        request_headers()  # checks the token
        if get_token() is None:
            raise InputError(
                "not logged in to the hub: run hf auth login, or set HF_TOKEN to a token with write access"
            )
        api = HfApi(library_name="gesso")
        address = api.create_repo(name, private=private or None, exist_ok=True)
        there = _check_repository(api, name, content, private)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(file.name, file) for file in content.files
        ]
        new = {file.name for file in content.files}
        if CARD not in new | there:
            operations.append(CommitOperationAdd(CARD, content.card.encode()))
        # Weights of an earlier push: a reader would find them, or an index that names them, beside the new ones.
        stale = {file for file in there - new if file.endswith((".safetensors", ".safetensors.index.json"))}
        operations += [CommitOperationDelete(file) for file in sorted(stale)]
        api.create_commit(name, operations, commit_message=f"Upload {content.kind} with gesso")
    return str(address)


def content_of(directory: Path, name: str) -> Content:
    """Return the files of a directory that are uploaded as repository `name`, after checking that none is missing."""
    if (directory / "adapter_config.json").is_file():
        files = [directory / "adapter_config.json", directory / ADAPTER]
        kind, card = "adapter", adapter_card(name, directory)
    elif (directory / "config.json").is_file() and (weights := weight_files(directory)):
        files = [*(directory / file for file in COMPANIONS if (directory / file).is_file()), *weights]
        kind, card = "model", model_card(name, directory)
    else:
        inside = [part for part in ("adapter", "model") if (directory / part).is_dir()]
        advice = f"; of this run, push {directory / inside[0]}" if inside else ""
        raise InputError(
            f"{directory} is neither an adapter (adapter_config.json and {ADAPTER}) nor a checkpoint (config.json and "
            f"safetensors){advice}"
        )
    if missing := [file.name for file in files if not file.is_file()]:
        raise InputError(f"{missing[0]} is missing from {directory}; nothing was uploaded")
    if (directory / CARD).is_file():
        files.append(directory / CARD)
    return Content(kind, files, card)


def _check_repository(api: Any, name: str, content: Content, private: bool) -> set[str]:
    """Return the files of the repository. Reject one that is public or has other content, before anything is sent."""
    info = api.model_info(name)
    if private and not info.private:
        raise InputError(f"{name} exists and is public; make it private on the hub, or choose another name")
    there = {file.rfilename for file in info.siblings or []}
    other = {"adapter": "config.json", "model": "adapter_config.json"}[content.kind]
    if other in there:
        raise InputError(
            f"{name} has {other}, so it is not the repository of {'an' if content.kind == 'adapter' else 'a'} "
            f"{content.kind}; choose another name"
        )
    return there


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn errors of the hub and the network into one line with the cause and what to do."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except GessoError:
        raise
    except HFValidationError as error:
        raise InputError(f"{name} is not a name of the hub: {error}") from error
    except ValueError as error:  # such as a README.md that the hub does not accept
        raise CheckpointError(f"{name} could not be pushed to the hub: {' '.join(str(error).split())}") from error
    except Exception as error:
        # The library wraps the errors of an upload in a RuntimeError.
        cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error
        first = str(cause).strip().partition("\n")[0].rstrip(".") or type(cause).__name__
        again = "Try again: files that have arrived are not sent twice."
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            rejected = f"Check that your token may write to {name} (hf auth whoami, hf auth login)."
            raise CheckpointError(
                f"{name} could not be pushed to the hub (status {status}): {first}. "
                f"{rejected if status in (401, 403, 404) else again}"
            ) from error
        # huggingface_hub 1 raises the errors of httpx, and version 2 those of httpx2; xet raises RuntimeError.
        module = type(cause).__module__.partition(".")[0]
        if module in ("httpx", "httpx2") or isinstance(cause, ConnectionError | RuntimeError):
            raise CheckpointError(
                f"{name} could not be pushed to the hub: {first}. Check the network, HF_ENDPOINT and HF_HUB_OFFLINE. "
                f"{again}"
            ) from error
        raise
