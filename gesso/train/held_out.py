"""Rows that are never trained on: which they are, their loss during training, the best weights, and the early stop."""

import hashlib
import json
import logging
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gesso.chat.prompt import Prompt
from gesso.chat.tokenizer import Tokenizer
from gesso.errors import GessoError, InputError
from gesso.files import read_json, replacing, replacing_directory
from gesso.images.tokens import image_tokens
from gesso.model.transformer import DiffusionGemma
from gesso.train.batch import Batch, Corruption, collate, corrupt
from gesso.train.data import Dataset, Example
from gesso.train.objective import Objective
from gesso.train.recipe import HeldOutSettings, Recipe

logger = logging.getLogger("gesso")

# Without a file of held-out rows, this share of the rows is held out, within these limits.
SHARE = 0.05
LEAST = 2
MOST = 200
FEWEST = 10  # with fewer different rows, none is held out
DRAWS = 4  # noise levels per canvas, if there are few rows
CANVASES = 64  # with more rows than this divided by DRAWS, fewer noise levels are used
SEED = 0x68656C64  # not the seed of the run: the noise is the same in every run, so losses can be compared
KEY = "held_out"  # of the loss in the metrics


@dataclass(frozen=True, kw_only=True)
class HeldOutSample:
    """A prompt of a held-out row, the model's answer at a step, and the answer in the data."""

    step: int
    prompt: str
    answer: str
    expected: str


Answer = Callable[[DiffusionGemma, Sequence[Prompt]], list[str]]  # answers to prompts
Show = Callable[[Sequence[HeldOutSample]], None]


def choose(dataset: Dataset) -> list[int]:
    """Return the good rows to hold out, chosen by the hash of their tokens and images, wherever a row is in a file.

    Equal rows are all held out or all trained on.
    """
    by_hash: dict[bytes, list[int]] = {}
    examples = (row for row in dataset.read() if isinstance(row, Example))
    for row, example in enumerate(examples):
        if len(example.tokens) > dataset.settings.max_length:  # a text that is shown in sections
            continue
        content = hashlib.sha256(array("q", example.tokens).tobytes())
        for image in example.images:
            content.update(image.digest.to_bytes(16, "big"))
        by_hash.setdefault(content.digest(), []).append(row)
    if len(by_hash) < FEWEST:
        return []
    count = min(max(round(SHARE * len(by_hash)), LEAST), MOST)
    return sorted(row for digest in sorted(by_hash)[:count] for row in by_hash[digest])


def split(dataset: Dataset, settings: HeldOutSettings, tokenizer: Tokenizer, eos: int) -> list[Example]:
    """Return the held-out rows: those of their own files, or else some of the dataset, which loses them."""
    if settings.files:
        file_settings = replace(dataset.settings, files=settings.files, repeat=(), cut=False)
        held_out_files = Dataset(file_settings, tokenizer, eos, dataset.reader)
        examples = [row for row in held_out_files.read() if isinstance(row, Example)]
    else:
        examples = dataset.take_out(choose(dataset))
    if not examples:
        reason = f"there are fewer than {FEWEST}"
        if settings.files:
            reason = f"{', '.join(settings.files)} has no usable row"
        raise InputError(f"no row can be held out: {reason}; name other files in held_out.files, or remove [held_out]")
    return examples


def question(prompt: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return the text of the last message of a prompt, for people: without the tags and roles of the chat template."""
    parts: list[list[int]] = [[]]
    images = tokenizer.image_ids or ()
    for token in (token for token in prompt if token not in images):
        if token in tokenizer.special_ids:
            parts.append([])
        else:
            parts[-1].append(token)
    texts = list(map(tokenizer.decode, parts))
    if len(parts) <= 2:  # a bos at most: no chat
        return texts[-1].strip()
    messages = (text.partition("\n")[2].strip() for text in texts)  # after the line with the role
    return ([message for message in messages if message] or [tokenizer.decode(prompt)])[-1]


def _finite(loss: float) -> float:
    """Return a loss that can be compared: infinite if it is not a number."""
    return loss if math.isfinite(loss) else math.inf


def prompt_of(example: Example) -> Prompt:
    """Return the prompt of the last response, with its images, as a request has it."""
    tokens = list(example.tokens[: example.spans[-1][0]])
    for image, start in zip(example.images, example.starts, strict=True):
        tokens[start : start + image.tokens] = image_tokens(image.digest, image.tokens)
    return Prompt(tokens, example.images)


class HeldOut:
    """The held-out rows of a run. `losses` are those of the steps at which they were evaluated so far."""

    def __init__(
        self, recipe: Recipe, settings: HeldOutSettings, examples: Sequence[Example], tokenizer: Tokenizer, eos: int,
        answer: Answer | None = None, show: Show = lambda _: None,
    ) -> None:  # fmt: skip
        self.recipe = recipe
        self.settings = settings
        self.examples = list(examples)
        self.tokenizer = tokenizer
        self.eos = eos
        self.answer = answer
        self.show = show
        out = Path(recipe.run.out).expanduser()
        self.samples_file = out / "samples.jsonl"
        self.best_directory = out / "best"
        self.losses: dict[int, float] = {}

    def is_due(self, step: int) -> bool:
        return step % self.settings.every == 0 or step == self.recipe.run.steps

    @property
    def best(self) -> int | None:
        """The step with the lowest loss, the earliest if there are several."""
        return min(self.losses, key=lambda step: (self.losses[step], step), default=None)

    @property
    def exhausted(self) -> bool:
        """Whether the last `patience` evaluations were all worse than the best one."""
        return self.best is not None and sum(step > self.best for step in self.losses) >= self.settings.patience

    # --- evaluate -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, step: int, objective: Objective) -> dict[str, float]:
        """Return the mean losses of the held-out rows, in total and by part, under the same noise every time."""
        totals = torch.zeros(3)
        for batch, noise in self._batches(objective.model):
            kind = objective.model.device.type
            with torch.autocast(kind, dtype=torch.bfloat16, enabled=self.recipe.run.autocast == "bfloat16"):
                losses = objective(batch, noise)
            losses_of_parts = (losses.total_B, losses.decoder_B, losses.encoder_B)
            totals += torch.stack([loss_B.float().sum().cpu() for loss_B in losses_of_parts])
        total, decoder, encoder = (totals / len(self.examples)).tolist()
        self.losses[step] = _finite(total)
        return {KEY: total, f"{KEY}_decoder": decoder, f"{KEY}_encoder": encoder}

    def _batches(self, model: DiffusionGemma) -> Iterator[tuple[Batch, Corruption]]:
        objective = self.recipe.objective
        config = model.config
        size = self.recipe.run.batch_size
        length = max(objective.canvas_lengths or (config.canvas_length,))
        draws = max(1, min(DRAWS, CANVASES // len(self.examples)))
        for first in range(0, len(self.examples), size):
            batch = collate(
                self.examples[first : first + size], canvas_length=length, per_example=objective.per_example,
                eos=self.eos, pad=config.pad_token_id, learn_text=objective.learn_text, seed=SEED, first=first,
                multiple=self.recipe.data.pad_to, draws=draws, pack=self.recipe.data.pack,
                bidirectional_images=config.bidirectional_images,
            ).to(model.device)  # fmt: skip
            share = objective.self_conditioning
            yield batch, corrupt(batch, config.vocab_size, conditioning=share, seed=SEED, first=first)

    def sample(self, step: int, model: DiffusionGemma) -> None:
        """Answer the prompts of the first held-out rows, append the answers to samples.jsonl, and show them."""
        chosen = self.examples[: self.settings.samples]
        if self.answer is None or not chosen:
            return
        try:
            answers = self.answer(model, [prompt_of(example) for example in chosen])
        except (GessoError, torch.OutOfMemoryError) as error:  # samples are optional: the run continues
            logger.warning("no samples at step %d: %s", step, str(error).partition("\n")[0])
            return
        samples = []
        for example, answer in zip(chosen, answers, strict=True):
            start, end = example.spans[-1]
            prompt = question(example.tokens[:start], self.tokenizer)
            expected = example.tokens[start:end]
            samples.append(
                HeldOutSample(step=step, prompt=prompt, answer=answer, expected=self.tokenizer.decode(expected).strip())
            )
        with self.samples_file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples)
        self.show(samples)

    # --- the best weights ---------------------------------------------------------------------------------------

    def resume(self, metrics: Sequence[Mapping[str, float]]) -> None:
        """Restore the losses from the metrics of the steps that are done, and drop the samples of later steps."""
        self.losses = {int(line["step"]): _finite(line[KEY]) for line in metrics if KEY in line}
        if self.samples_file.exists():
            *lines, _ = self.samples_file.read_text(encoding="utf-8").split("\n")  # the last one may be incomplete
            evaluated = [line + "\n" for line in lines if json.loads(line)["step"] in self.losses]
            with replacing(self.samples_file) as file:
                file.write("".join(evaluated).encode("utf-8"))

    def keep(self, step: int, parameters: Mapping[str, Tensor]) -> None:
        """Store the weights if they are those of the best step.

        The caller has saved a checkpoint of this step before, so a run that is killed here stores them when it resumes.
        """
        if step != self.best or self.stored_step() == step:
            return
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in parameters.items()}
        with replacing_directory(self.best_directory) as partial:
            save_file(weights, partial / "weights.safetensors")
            (partial / "state.json").write_text(json.dumps({"step": step}), encoding="utf-8")

    def stored_step(self) -> int | None:
        path = self.best_directory / "state.json"
        return int(read_json(path)["step"]) if path.is_file() else None

    def best_weights(self) -> dict[str, Tensor]:
        """Return the weights of the best step, or nothing if there was no evaluation."""
        if self.best is None or self.stored_step() != self.best:
            return {}
        return load_file(self.best_directory / "weights.safetensors")
