"""The training loop: batches in, checkpoints out, and the same losses whether or not the run was interrupted.

`Trainer.run` resumes from the newest checkpoint, takes the steps, saves, and exports the trained model. One step is
`Trainer._step`: set the learning rate, add up the gradients of its batches, clip them, and update the weights.

No random generator has state. The order of the data, the choice of canvases and the noise are functions of the seed and
the number of the example. So a run resumes exactly from its weights, its optimizer state and its step.
"""

import itertools
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from gesso import adapters
from gesso.adapters import LoraSettings
from gesso.checkpoint import write
from gesso.checkpoint.card import RECIPE
from gesso.checkpoint.find import find_directory, hub_base
from gesso.checkpoint.parameters import assign, checkpoint_name, empty_model
from gesso.checkpoint.source import open_source
from gesso.checkpoint.vision import PREFIX, empty_vision, is_buffer
from gesso.errors import GessoError, InputError
from gesso.files import locked, remove_all_abandoned, replacing_directory
from gesso.memory.device import keep_within
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from gesso.train import resuming, state
from gesso.train.batch import Batch, collate, corrupt
from gesso.train.compiling import announce_compilations
from gesso.train.data import Dataset, Example, Source
from gesso.train.held_out import HeldOut
from gesso.train.inputs import fingerprints
from gesso.train.metrics import MetricsLog, read_metrics
from gesso.train.objective import Losses, Objective
from gesso.train.optimizers import learning_rate, make_optimizers
from gesso.train.prepare import prepare
from gesso.train.processes import BatchStream, Prepared, in_any_process, shard
from gesso.train.recipe import ContinuedLora, Recipe
from gesso.train.shared_recipe import shared_recipe

logger = logging.getLogger("gesso")

LOCK = ".lock"  # in the directory of a run, while it is trained

Report = Callable[[Mapping[str, float]], None]
Score = Callable[[DiffusionGemma], Mapping[str, float]]  # scores of the current model


@dataclass(frozen=True)
class PendingStep:
    """A step that may still be running on the GPU."""

    step: int  # steps done before it
    batches: list[int]  # by number
    rate: float
    tokens: int
    values: Tensor  # sums over the examples: total, decoder and encoder loss; then the norm of the gradient
    done: torch.cuda.Event | None = None
    scores: dict[str, float] = field(default_factory=dict)

    def to_host(self) -> "PendingStep":
        """Start copying the values to the CPU, in stream order, without waiting."""
        host = torch.empty_like(self.values, device="cpu", pin_memory=True).copy_(self.values, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return replace(self, values=host, done=done)

    def read(self) -> list[float]:
        if self.done is not None:
            self.done.synchronize()
        values: list[float] = self.values.tolist()
        return values


class Trainer:
    def __init__(
        self,
        recipe: Recipe,
        model: DiffusionGemma,
        data: Source,
        source: Path,
        eos: int,
        score: Score | None = None,
        held_out: HeldOut | None = None,
        memory: int | None = None,
    ) -> None:
        self.recipe = recipe
        self.model = model
        self.data = data
        self.source = source
        self.eos = eos
        self.score = score
        self.held_out = held_out
        self.memory = memory  # bytes that this process may use of its GPU
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.out = Path(recipe.run.out).expanduser()
        if score is not None and self.world > 1:
            raise InputError("[eval] runs in one process only; remove [eval] from the recipe, or run without torchrun")
        if held_out is not None and (self.world > 1 or recipe.run.ema):
            raise InputError(
                "[held_out] exports the best weights of one process; remove it from the recipe, or run without "
                "torchrun and without run.ema"
            )
        if recipe.optimizer.kind == "muon" and (recipe.lora or self.world > 1):
            raise InputError('optimizer.kind = "muon" trains whole matrices in one process: no [lora], no torchrun')
        self.lora = _choose_trainable(model, recipe)
        prepare(model)
        certainty = recipe.distill.certainty if recipe.distill else 0.0
        self.objective = Objective(model, recipe.objective, recipe.run.checkpoint_activations, certainty)
        if self.world > 1:
            shard(self.objective, model.decoder.layers)
        self.parameters = state.trainable(model)
        self.average = {n: p.detach().clone() for n, p in self.parameters.items()} if recipe.run.ema else {}
        self.fused = model.device.type == "cuda" and self.world == 1
        self.optimizers = make_optimizers(self.parameters, recipe.optimizer, self.fused)
        images = data.images.digests if isinstance(data, Dataset) else ()
        self.inputs = fingerprints(recipe, open_source(source), images)
        self.step = 0
        self.stepped = False  # whether this process has taken a step
        self.clock = 0.0  # when the current step began
        if recipe.run.compile:
            self.objective.compile_parts()
            if self.rank == 0:
                announce_compilations(self.objective)

    def run(self, report: Report = lambda _: None, minutes: float | None = None) -> None:
        """Train to the last step, from the newest checkpoint in `run.out` on, for at most `minutes`.

        A run that is out of time exports its current model; the same call resumes it.
        """
        deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self.out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(state.explained(self.out))
            if self.rank == 0 and stack.enter_context(locked(self.out / LOCK)):
                remove_all_abandoned(self.out)
            self._run(report, deadline)

    def _run(self, report: Report, deadline: float) -> None:
        run = self.recipe.run
        self._resume()
        settings = asdict(self.recipe)
        log = MetricsLog(self.out, run.log, run.log_every, settings, self.step) if self.rank == 0 else None
        held_out = self.held_out
        if held_out:
            held_out.resume(read_metrics(self.out))
            held_out.keep(self.step, self.parameters)
        batches = self._batches()
        pending: deque[PendingStep] = deque()  # steps whose values have not been read
        self.clock = time.perf_counter()
        while self.step < run.steps and not (held_out and held_out.exhausted):
            pending.append(self._step([next(batches) for _ in range(run.accumulate)]))
            if self.memory is not None and not self.stepped:
                keep_within(self.model.device, self.memory)  # now that the kernels are loaded
            self.step += 1
            self.stepped = True

            if self.score and self.recipe.eval and self.step % self.recipe.eval.every == 0:
                self._report_steps(pending, log, report, keep=1)
                pending[-1].read()  # wait for the step, so that the evaluation does not count as its time
                began = time.perf_counter()
                pending[-1].scores.update(self.score(self.model))
                self.clock += time.perf_counter() - began  # not part of the step
            evaluates = held_out is not None and held_out.is_due(self.step)
            if held_out and evaluates:
                began = time.perf_counter()
                pending[-1].scores.update(held_out.evaluate(self.step, self.objective))
                self.clock += time.perf_counter() - began  # not part of the step

            out_of_time = in_any_process(time.monotonic() > deadline, self.model.device)
            saves = self.step % run.save_every == 0 or self.step == run.steps or out_of_time or evaluates
            # On one GPU, launch the next step before reading the values of this one.
            self._report_steps(pending, log, report, keep=1 if self.fused and not saves else 0)
            if saves:
                self._save()
                if held_out and evaluates:
                    held_out.keep(self.step, self.parameters)
                    held_out.sample(self.step, self.model)
                self.clock = time.perf_counter()  # saving and sampling are not part of the next step
            if out_of_time:
                break
        if log:
            log.close()
        self._export()

    def _report_steps(self, pending: deque[PendingStep], log: MetricsLog | None, report: Report, keep: int) -> None:
        """Wait for the pending steps, except the last `keep`, and log their metrics."""
        while len(pending) > keep:
            metrics = self._finish(pending.popleft())
            if log:
                log.append(metrics)
                report(metrics)

    # --- one step -----------------------------------------------------------------------------------------------

    def _step(self, batches: list[Prepared]) -> PendingStep:
        """Update the weights once, with the gradients of all these batches added up."""
        rate = self._set_learning_rate()
        sums, tokens = self._backward(batches)
        norm = torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), self.recipe.optimizer.clip)
        values = torch.stack([*sums, state.full(norm)])
        pending = PendingStep(
            step=self.step, batches=[number for number, _ in batches], rate=rate, tokens=tokens, values=values
        )
        if not self.fused:
            self._check_finite(pending)
        for optimizer in self.optimizers:
            if self.fused:  # the GPU skips the update by itself, so the CPU need not wait for the values
                optimizer.found_inf = (~values.isfinite().all()).float()  # type: ignore[attr-defined]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.average:
            current = [self.parameters[name].detach() for name in self.average]
            torch._foreach_lerp_(list(self.average.values()), current, 1 - self.recipe.run.ema)
        return pending.to_host() if self.fused else pending

    def _set_learning_rate(self) -> float:
        settings = self.recipe.optimizer
        rate = learning_rate(settings.lr, settings.min_lr, settings.warmup, self.step, self.recipe.run.steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        return rate

    def _backward(self, batches: list[Prepared]) -> tuple[Tensor, int]:
        """Add up the gradients of the batches; return the sums of the losses over the examples, and their tokens."""
        run = self.recipe.run
        sums = torch.zeros(3, device=self.model.device)  # of total, decoder and encoder loss
        tokens = 0
        for number, batch in batches:
            losses, batch_tokens = self._losses(batch, number)
            # The mean over all examples of the step. FSDP averages gradients over the processes.
            (losses.total_B.sum() * self.world / (run.batch_size * run.accumulate)).backward()
            parts = [losses.total_B, losses.decoder_B, losses.encoder_B]
            sums += torch.stack([part.detach().float().sum() for part in parts])
            tokens += batch_tokens
        return sums, tokens

    def _losses(self, batch: Batch, number: int) -> tuple[Losses, int]:
        """Return the losses of a batch and its number of tokens."""
        run = self.recipe.run
        objective = self.recipe.objective
        device = self.model.device
        tokens = int(batch.valid_S.sum()) + batch.clean_KC.numel()
        batch = batch.to(device)
        noise = corrupt(
            batch, self.model.config.vocab_size, conditioning=objective.self_conditioning, seed=run.seed,
            first=self._first_example(number), pinned=objective.pinned, unrolled=objective.unrolled,
        )  # fmt: skip
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=run.autocast == "bfloat16"):
            return self.objective(batch, noise), tokens

    def _finish(self, pending: PendingStep) -> dict[str, float]:
        """Wait for a step and return its metrics."""
        if self.fused:
            self._check_finite(pending)
        values = pending.values
        tokens = float(pending.tokens)
        if self.world > 1:
            values = torch.cat([values[:3], values.new_tensor([tokens])])
            dist.all_reduce(values)
            tokens = values[3].item()
        examples = self.recipe.run.batch_size * self.recipe.run.accumulate
        total, decoder, encoder = values[:3].tolist()
        now = time.perf_counter()
        seconds = now - self.clock
        self.clock = now
        return {
            "step": pending.step + 1, "loss": total / examples, "decoder": decoder / examples,
            "encoder": encoder / examples, "lr": pending.rate, "gradient": pending.values[3].item(),
            "tokens_per_second": tokens / seconds, **pending.scores,
        }  # fmt: skip

    def _check_finite(self, pending: PendingStep) -> None:
        total, _, _, norm = pending.read()
        wrong = [name for name, value in (("loss", total), ("gradient", norm)) if not math.isfinite(value)]
        # All processes must stop together: the others would wait for this one forever.
        if not in_any_process(bool(wrong), self.model.device):
            return
        step = pending.step + 1
        path = self.out / f"not-finite-{step:08}-{self.rank}.json"
        what = wrong[0] if wrong else "loss of another process"
        rows = [
            asdict(replace(example, images=())) | {"images": [f"{image.digest:032x}" for image in example.images]}
            for number in pending.batches
            for example in next(self._examples(number))[1]
        ]
        report = json.dumps({"step": step, "what": what, "examples": rows}, indent=1, default=np.ndarray.tolist)
        path.write_text(report, encoding="utf-8")
        raise GessoError(
            f"the {what} of step {step} is not finite; the weights are unchanged. The examples of the step "
            f"are in {path}. Inspect them, lower optimizer.lr or optimizer.clip, or raise optimizer.warmup: the run "
            "resumes with these changes."
        )

    # --- batches ------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[Prepared]:
        """Return the batches from the next step on. Workers prepare them ahead, in the same order."""
        run = self.recipe.run
        config = self.model.config
        objective = self.recipe.objective
        lengths = self._lengths

        def prepared(first: int, stride: int) -> Iterator[Prepared]:
            for number, examples in self._examples(first, stride):
                yield number, collate(
                    examples, canvas_length=lengths[number % len(lengths)], per_example=objective.per_example,
                    eos=self.eos, pad=config.pad_token_id, learn_text=objective.learn_text, seed=run.seed,
                    first=self._first_example(number), multiple=self.recipe.data.pad_to,
                    draws=objective.draws[number % len(objective.draws)], pack=self.recipe.data.pack,
                    conditioning=objective.self_conditioning, bidirectional_images=config.bidirectional_images,
                )  # fmt: skip

        stream = BatchStream(prepared, self.step * run.accumulate)
        pinned = self.model.device.type == "cuda"
        loader = DataLoader(stream, batch_size=None, num_workers=run.workers, pin_memory=pinned)
        return iter(loader if run.workers else stream)

    def _examples(self, first: int, stride: int = 1) -> Iterator[tuple[int, tuple[Example, ...]]]:
        """Yield number and examples of every `stride`-th batch from `first` on."""
        size = self.recipe.run.batch_size
        batches = self.data.batches(size, first, self.rank, self.world, stride=stride, canvas_lengths=self._lengths)
        return zip(itertools.count(first, stride), batches, strict=False)

    def _first_example(self, batch: int) -> int:
        """Return the index, counted over the run, of this process's first example in a batch."""
        return batch * self.recipe.run.batch_size + self.rank * self.recipe.run.batch_size // self.world

    @property
    def _lengths(self) -> tuple[int, ...]:
        return self.recipe.objective.canvas_lengths or (self.model.config.canvas_length,)

    # --- checkpoints and export ---------------------------------------------------------------------------------

    def _resume(self) -> None:
        newest = state.latest(self.out)
        if newest is None:
            return
        note = state.read_note(newest)
        for line in resuming.check(self.out, note, self.recipe, self.inputs):
            if self.rank == 0:
                logger.warning("%s", line)
        self.step = note["step"]
        state.load(newest, self.step, self.parameters, self.optimizers, self.average)

    def _save(self) -> None:
        state.save(
            self.out, self.step, self.parameters, self.optimizers, self.average,
            resuming.note_of(self.recipe, self.inputs), write=self.rank == 0, keep=self.recipe.run.keep,
        )  # fmt: skip
        if self.world > 1:
            dist.barrier()

    def _export(self) -> None:
        """Write the adapter in peft's format, or a checkpoint: of the averaged, the best or the last weights."""
        target = self.out / ("adapter" if self.lora else "model")
        exported = self.parameters if self.lora else dict(self.model.named_parameters())
        best = self.held_out.best_weights() if self.held_out else {}
        tensors = {name: state.gathered(tensor) for name, tensor in {**exported, **self.average, **best}.items()}
        if self.rank or (target.exists() and not self.stepped):
            return
        with replacing_directory(target) as partial:
            if self.lora:
                for name, tensor in tensors.items():
                    assign(self.model, name, tensor)
                adapters.save(self.model, partial, self.lora, base=hub_base(self.recipe.model.path))
            else:
                model = empty_model(self._trained_config())
                model.vision = None if self.model.vision is None else empty_vision(model.config)
                for name, tensor in tensors.items():
                    assign(model, name, tensor.to(getattr(torch, self.recipe.run.export_dtype)))
                write.save(model, partial, source=self.source, shard_bytes=self.recipe.run.export_shard)
            (partial / RECIPE).write_text(shared_recipe(self.recipe), encoding="utf-8")

    def _trained_config(self) -> Config:
        """Return the model's configuration, with the canvas length of the training if there was only one.

        Recorded canvases may be short because the answers are short, so they do not change the length.
        """
        config = self.model.config
        lengths = set(self._lengths)
        if len(lengths) > 1 or self.recipe.distill:
            return config
        (length,) = lengths
        return replace(config, canvas_length=length, raw={**config.raw, "canvas_length": length})


def _choose_trainable(model: DiffusionGemma, recipe: Recipe) -> LoraSettings | None:
    """Attach the adapter to train, a new one or one to continue, and return its settings; or select the weights."""
    if isinstance(recipe.lora, ContinuedLora):
        shared = model.is_tied
        settings = adapters.load(model, find_directory(recipe.lora.adapter), "default", trainable=True)
        if shared and not model.is_tied:
            raise InputError(
                f"cannot continue {recipe.lora.adapter}: it changes the shared weights of encoder and decoder "
                "differently; gesso trains one change for both, as in the adapters that it writes"
            )
        return settings
    if recipe.lora is not None:
        adapters.add(model, recipe.lora, seed=recipe.run.seed)
        return recipe.lora
    if model.config.quantization:
        raise InputError(
            f"weights quantized to {model.config.quantization} cannot be trained; add [lora] to the recipe, or "
            "train the checkpoint that they were quantized from"
        )
    which = recipe.model.train
    if which != "text":
        if model.vision is None:
            raise InputError(f'model.train = "{which}" needs a vision tower, and this checkpoint has none; set "text"')
        model.vision.to(model.dtype)  # on a CPU it has the stored dtype, in which most updates would be lost
    for name, parameter in model.named_parameters():
        of_tower = name.startswith(PREFIX)
        fixed = "layer_scalars" in name or is_buffer(checkpoint_name(name))
        parameter.requires_grad_(not fixed and (which == "all" or of_tower == (which == "vision")))
    return None
