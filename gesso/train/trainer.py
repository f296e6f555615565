"""The training loop: batches in, checkpoints out, and the same losses whether or not it was interrupted.

Nothing random has a state. The order of the data, the canvases chosen and the noise are functions of the seed and of
the number of the example, so that a run resumes exactly from its weights, its optimizer and its step.
"""

import itertools
import json
import math
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from gesso.adapters import files as adapters
from gesso.checkpoint import huggingface as checkpoint
from gesso.checkpoint import write as saving
from gesso.errors import GessoError, InputError
from gesso.files import replacing
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from gesso.train import state
from gesso.train.batch import Batch, collate, corrupt
from gesso.train.data import Example, Source
from gesso.train.muon import Muon
from gesso.train.objective import Losses, Objective, anywhere
from gesso.train.processes import Feed, Prepared, shard
from gesso.train.recipe import Recipe

# Settings that may change between the legs of a run.
FREE = {"steps", "save_every", "keep", "log_every", "tensorboard", "out", "workers", "export_dtype", "export_shard"}

Report = Callable[[Mapping[str, float]], None]
Score = Callable[[DiffusionGemma], Mapping[str, float]]  # of the model as it stands


@dataclass(frozen=True)
class Launched:
    """A step that may still be under way."""

    step: int  # done before it
    batches: list[int]  # by number
    rate: float
    tokens: int
    values: Tensor  # sums over the examples: whole loss, decoder's, encoder's; norm of the gradient
    done: torch.cuda.Event | None = None
    scores: dict[str, float] = field(default_factory=dict)

    def to_host(self) -> "Launched":
        """On its way to the CPU, behind what the GPU has been given so far and before what it will be given."""
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
    ) -> None:
        self.recipe, self.model, self.data, self.source, self.eos = recipe, model, data, source, eos
        self.score = score
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.out = Path(recipe.run.out).expanduser()
        if score is not None and self.world > 1:
            raise InputError("eval while training runs in one process; leave [eval] out, or torchrun")
        if recipe.lora is None:
            if model.config.quantization:
                raise InputError(
                    f"weights quantized to {model.config.quantization} cannot be trained; add [lora] to the recipe, or "
                    "train the checkpoint they were made from"
                )
            for name, parameter in model.named_parameters():
                parameter.requires_grad_("layer_scalars" not in name)
        else:
            adapters.add(model, recipe.lora, seed=recipe.run.seed)
        self.objective = Objective(model, recipe.objective, recipe.run.checkpoint_activations)
        if self.world > 1:
            shard(self.objective)
        self.parameters = state.trainable(model)
        self.average = {n: p.detach().clone() for n, p in self.parameters.items()} if recipe.run.ema else {}
        self.fused = model.device.type == "cuda" and self.world == 1
        self.optimizers = self._optimizers()
        self.step, self.stepped, self.clock = 0, False, 0.0
        if recipe.run.compile:
            self.objective.compile_parts()

    def run(self, report: Report = lambda _: None, minutes: float | None = None) -> None:
        """Train to the last step, going on from the newest checkpoint in `run.out`; at most so many minutes at a time.

        What is exported is then the model as it stands, and the same call goes on with it.
        """
        until = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self.out.mkdir(parents=True, exist_ok=True)
        self._resume()
        run = self.recipe.run
        batches, writer = self._batches(), _tensorboard(self.out) if run.tensorboard and self.rank == 0 else None
        waiting: deque[Launched] = deque()

        def settle(most: int) -> None:
            while len(waiting) > most:
                metrics = self._finish(waiting.popleft())
                if self.rank == 0:
                    self._log(metrics, writer)
                    report(metrics)

        self.clock = time.perf_counter()
        while self.step < run.steps:
            waiting.append(self._step([next(batches) for _ in range(run.accumulate)]))
            self.step, self.stepped = self.step + 1, True
            if self.score and self.recipe.eval and self.step % self.recipe.eval.every == 0:
                waiting[-1].scores.update(self.score(self.model))
            late = anywhere(time.monotonic() > until, self.model.device)
            saves = self.step % run.save_every == 0 or self.step == run.steps or late
            settle(1 if self.fused and not saves else 0)  # a GPU is given the next step before this one is looked at
            if saves:
                self._save()
            if late:
                break
        self._export()

    # --- one step -----------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[Prepared]:
        """From the next step on; with workers, prepared ahead of it by other processes, in the same order."""
        run, config, objective, lengths = self.recipe.run, self.model.config, self.recipe.objective, self._lengths

        def make(first: int, stride: int) -> Iterator[Prepared]:
            for number, examples in self._examples(first, stride):
                yield number, collate(
                    examples, canvas_length=lengths[number % len(lengths)], per_example=objective.per_example,
                    eos=self.eos, pad=config.pad_token_id, learn_text=objective.learn_text, seed=run.seed,
                    first=self._first(number), multiple=self.recipe.data.pad_to,
                    draws=objective.draws[number % len(objective.draws)],
                )  # fmt: skip

        prepared = Feed(make, self.step * run.accumulate)
        pinned = self.model.device.type == "cuda"
        loader = DataLoader(prepared, batch_size=None, num_workers=run.workers, pin_memory=pinned)
        return iter(loader if run.workers else prepared)

    def _examples(self, first: int, stride: int = 1) -> Iterator[tuple[int, tuple[Example, ...]]]:
        """Every `stride`-th batch from number `first` on."""
        size = self.recipe.run.batch_size
        found = self.data.batches(size, first, self.rank, self.world, stride=stride, canvas_lengths=self._lengths)
        return zip(itertools.count(first, stride), found, strict=False)

    def _first(self, number: int) -> int:
        """The number in the run of this process's first example of a batch."""
        return number * self.recipe.run.batch_size + self.rank * self.recipe.run.batch_size // self.world

    @property
    def _lengths(self) -> tuple[int, ...]:
        return self.recipe.objective.canvas_lengths or (self.model.config.canvas_length,)

    def _step(self, batches: list[Prepared]) -> "Launched":
        run, settings = self.recipe.run, self.recipe.optimizer
        rate = learning_rate(settings.lr, settings.min_lr, settings.warmup, self.step, run.steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        sums, tokens = torch.zeros(3, device=self.model.device), 0
        for number, batch in batches:
            losses, counted = self._losses(batch, number)
            # The mean over all examples of the step; shards of it are averaged over the processes.
            (losses.total_B.sum() * self.world / (run.batch_size * run.accumulate)).backward()
            parts = [losses.total_B, losses.decoder_B, losses.encoder_B]
            sums += torch.stack([part.detach().float().sum() for part in parts])
            tokens += counted
        norm = torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), settings.clip)
        values = torch.stack([*sums, state.full(norm)])
        launched = Launched(self.step, [number for number, _ in batches], rate, tokens, values)
        if not self.fused:
            self._check_finite(launched)
        for optimizer in self.optimizers:
            if self.fused:  # the GPU itself leaves the weights alone, and nobody waits for it here
                optimizer.found_inf = (~values.isfinite().all()).float()  # type: ignore[attr-defined]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.average:
            names = list(self.average)
            torch._foreach_lerp_(
                [self.average[name] for name in names], [self.parameters[name].detach() for name in names], 1 - run.ema
            )
        return launched.to_host() if self.fused else launched

    def _finish(self, launched: "Launched") -> dict[str, float]:
        """The metrics of a step, once it is done."""
        if self.fused:
            self._check_finite(launched)
        values, tokens = launched.values, float(launched.tokens)
        if self.world > 1:
            values = torch.cat([values[:3], values.new_tensor([tokens])])
            dist.all_reduce(values)
            tokens = values[3].item()
        examples_seen = self.recipe.run.batch_size * self.recipe.run.accumulate
        total, decoder, encoder = values[:3].tolist()
        now = time.perf_counter()
        seconds, self.clock = now - self.clock, now
        return {
            "step": launched.step + 1, "loss": total / examples_seen, "decoder": decoder / examples_seen,
            "encoder": encoder / examples_seen, "lr": launched.rate, "gradient": launched.values[3].item(),
            "tokens_per_second": tokens / seconds, **launched.scores,
        }  # fmt: skip

    def _losses(self, batch: Batch, number: int) -> tuple[Losses, int]:
        run, objective, device = self.recipe.run, self.recipe.objective, self.model.device
        tokens = int(batch.valid_BS.sum()) + int(batch.present_BK.sum()) * batch.clean_BKC.shape[-1]
        batch = batch.to(device)
        noise = corrupt(
            batch.clean_BKC, self.model.config.vocab_size, conditioning=objective.self_conditioning, seed=run.seed,
            first=self._first(number), pinned=objective.pinned,
        )  # fmt: skip
        enabled = run.autocast == "bfloat16"
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled):
            return self.objective(batch, noise), tokens

    def _check_finite(self, launched: "Launched") -> None:
        total, _, _, norm = launched.read()
        wrong = [name for name, value in (("loss", total), ("gradient", norm)) if not math.isfinite(value)]
        if not anywhere(bool(wrong), self.model.device):
            return  # every process must come to the same end, or the others would wait for this one for ever
        path = self.out / f"not-finite-{launched.step:08}-{self.rank}.json"
        what = wrong[0] if wrong else "loss of another process"
        rows = [asdict(example) for number in launched.batches for example in next(self._examples(number))[1]]
        path.write_text(json.dumps({"step": launched.step, "what": what, "examples": rows}, indent=1), encoding="utf-8")
        raise GessoError(
            f"the {what} of step {launched.step + 1} is not finite; it changed nothing. Its examples are in {path}. "
            "Look at them, lower optimizer.lr, or raise optimizer.warmup."
        )

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        settings = self.recipe.optimizer
        muon = settings.kind == "muon"
        if muon and (self.recipe.lora or self.world > 1):
            raise InputError('optimizer.kind = "muon" trains whole matrices in one process: no [lora], no torchrun')
        # An embedding is a table, not a map: muon has nothing to straighten there.
        straight: list[Tensor] = []
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for name, parameter in self.parameters.items():
            table = "embed_tokens" in name or name == "lm_head"
            kind = others if parameter.ndim < 2 else straight if muon and not table else matrices
            kind.append(parameter)
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        adam = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=settings.lr, betas=settings.betas, eps=settings.eps,
            fused=self.fused or None,
        )  # fmt: skip
        return [adam, Muon(straight, settings.lr, settings.momentum, settings.weight_decay)] if muon else [adam]

    # --- what lasts ---------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        found = state.latest(self.out)
        if found is None:
            self._forget_after(0)
            return
        note = state.load(found, self.parameters, self.optimizers, self.average)
        if changed := _differences(note["recipe"], json.loads(json.dumps(self.recipe.to_dict()))):
            raise InputError(
                f"{self.out} holds a run with other settings ({', '.join(changed)}); choose another run.out, "
                "or delete it to start anew"
            )
        self.step = note["step"]
        self._forget_after(self.step)

    def _forget_after(self, step: int) -> None:
        """Metrics of steps after the checkpoint are of a run that was cut off; they come again."""
        path = self.out / "metrics.jsonl"
        if self.rank or not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except ValueError:  # the last line may be half written
                continue
        with replacing(path) as file:
            file.write("".join(kept).encode("utf-8"))

    def _log(self, metrics: Mapping[str, float], writer: Any) -> None:
        with (self.out / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")
        if writer is not None and self.step % self.recipe.run.log_every == 0:
            for name, value in metrics.items():
                writer.add_scalar(name, value, self.step)
            writer.flush()

    def _save(self) -> None:
        note = {"recipe": self.recipe.to_dict()}
        state.save(
            self.out, self.step, self.parameters, self.optimizers, self.average, note,
            write=self.rank == 0, keep=self.recipe.run.keep,
        )  # fmt: skip
        if self.world > 1:
            dist.barrier()

    def _trained_config(self) -> Config:
        """The model's; where canvases of one length were learnt, those are what it should be given."""
        config, lengths = self.model.config, set(self._lengths)
        if len(lengths) > 1:
            return config
        (length,) = lengths
        return replace(config, canvas_length=length, raw={**config.raw, "canvas_length": length})

    def _export(self) -> None:
        """What others load: an adapter in peft's format, or a checkpoint; the average where there is one."""
        target = self.out / ("adapter" if self.recipe.lora else "model")
        wanted = self.parameters if self.recipe.lora else dict(self.model.named_parameters())
        finished = {name: state.whole(tensor) for name, tensor in {**wanted, **self.average}.items()}
        if self.rank or (target.exists() and not self.stepped):
            return
        with tempfile.TemporaryDirectory(prefix=".export-", dir=self.out) as place:
            fresh = Path(place) / target.name
            if self.recipe.lora:
                for name, tensor in finished.items():
                    checkpoint.assign(self.model, name, tensor)
                adapters.save(self.model, fresh, self.recipe.lora)
            else:
                plain = checkpoint.empty_model(self._trained_config())
                for name, tensor in finished.items():
                    checkpoint.assign(plain, name, tensor.to(getattr(torch, self.recipe.run.export_dtype)))
                saving.save(plain, fresh, source=self.source, shard_bytes=self.recipe.run.export_shard)
            shutil.rmtree(target, ignore_errors=True)  # of an earlier leg, with fewer steps
            fresh.rename(target)


def learning_rate(peak: float, least: float, warmup: int, step: int, steps: int) -> float:
    """Up in a straight line, then down along half a cosine."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return least + (peak - least) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    found = []
    for section in sorted(set(before) | set(now)):
        old, new = before.get(section) or {}, now.get(section) or {}
        found += [
            f"{section}.{name}"
            for name in sorted(set(old) | set(new))
            if old.get(name) != new.get(name) and not (section == "run" and name in FREE)
        ]
    return found


def _tensorboard(out: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("run.tensorboard needs the package tensorboard: pip install 'gesso[train]'") from None
    return SummaryWriter(str(out / "tensorboard"))
