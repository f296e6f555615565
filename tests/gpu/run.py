"""Run the GPU suite and write docs/gpu-acceptance.json: `make test-gpu`, on a machine with an NVIDIA GPU.

Each group of tests is a separate pytest process, so that the memory of one group does not count in the limits of
another. Groups run in parallel if GPU memory allows. This script needs only the standard library; the tests need
pytest, torch, triton, transformers and the server's packages.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SHARE = 0.85  # of the card's memory that parallel groups may use
JOBS = 12  # parallel groups
SECONDS = 480  # for the whole suite: groups that have not ended by then are stopped
PACKAGES = (
    "pytest", "torch", "triton", "transformers", "numpy", "safetensors", "tokenizers", "jinja2", "typer", "rich",
    "huggingface_hub", "fastapi", "uvicorn", "pydantic", "msgspec", "prometheus_client",
    "jsonschema_rs",
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    name: str
    targets: tuple[str, ...]  # files, or tests by their pytest id
    memory: int  # most GB of GPU memory
    limit: int  # seconds


# Longest first, so that the suite ends soon.
GROUPS = (
    Group("real-width", ("tests/gpu/test_real_width.py",), memory=20, limit=240),
    Group("adapters", ("tests/gpu/test_adapters.py",), memory=24, limit=240),
    Group("attention", ("tests/backends/cuda/test_attention.py",), memory=4, limit=240),
    Group(
        "kernels-canvas",
        (
            "tests/backends/cuda/test_adapters.py",
            "tests/backends/cuda/test_advance.py",
            "tests/backends/cuda/test_asked.py",
            "tests/backends/cuda/test_embed.py",
            "tests/backends/cuda/test_hash.py",
            "tests/backends/cuda/test_vocab.py",
            "tests/backends/cuda/test_within.py",
        ),
        memory=4,
        limit=240,
    ),
    Group("training", ("tests/gpu/test_training.py", "tests/gpu/test_training_attention.py"), memory=10, limit=240),
    Group("writing", ("tests/gpu/test_writing.py",), memory=4, limit=240),
    Group("26b-int4", ("tests/gpu/test_26b_int4.py",), memory=20, limit=240),
    Group("streaming", ("tests/gpu/test_streaming.py",), memory=22, limit=240),
    Group("reference", ("tests/gpu/test_reference.py",), memory=40, limit=240),
    Group("engine", ("tests/gpu/test_engine.py", "tests/gpu/test_verified.py"), memory=4, limit=200),
    Group("serve", ("tests/gpu/test_serve.py",), memory=5, limit=240),
    Group("formats", ("tests/gpu/test_formats.py", "tests/gpu/test_feed_forward.py"), memory=6, limit=200),
    Group("training-memory", ("tests/gpu/test_training_memory.py",), memory=20, limit=200),
    Group("26b-fp8", ("tests/gpu/test_26b_fp8.py",), memory=34, limit=200),
    Group("26b-bf16", ("tests/gpu/test_26b_bf16.py",), memory=58, limit=200),
    Group("26b-serve", ("tests/gpu/test_serve_26b.py",), memory=40, limit=240),
    Group("training-26b", ("tests/gpu/test_training_26b.py",), memory=14, limit=200),
    Group("families", ("tests/gpu/test_families.py",), memory=4, limit=240),
    Group("precision", ("tests/gpu/test_precision.py",), memory=4, limit=240),
    Group("images", ("tests/gpu/test_images.py",), memory=16, limit=200),
    # These files use a GPU if there is one. The other tests of test_experts_four_bit.py, and those of test_linear.py,
    # test_four_bit.py and test_model.py, are for Triton's interpreter.
    Group(
        "kernels-experts",
        (
            "tests/backends/cuda/test_experts.py",
            "tests/backends/cuda/test_experts_four_bit.py::test_four_bit_ptx_matches_the_plain_conversion_to_the_bit",
            "tests/backends/cuda/test_experts_four_bit.py::test_int4_kernels_for_hopper_match_those_in_triton_to_the_bit",
            "tests/backends/cuda/test_mixture.py",
            "tests/backends/cuda/test_rows.py",
            "tests/checkpoint/test_transfer.py",
        ),
        memory=4,
        limit=240,
    ),
)


@dataclass
class Running:
    group: Group
    process: subprocess.Popen[bytes]
    log: Path
    xml: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


def main(
    given: Sequence[str] | None = None, every: tuple[Group, ...] = GROUPS, machine: dict[str, Any] | None = None
) -> int:
    """Run `every` group, or those that the arguments name, and write the report about this machine."""
    parser = argparse.ArgumentParser(description="Run the GPU suite.")
    parser.add_argument("--tree", required=True, help="Git tree of gesso/ under test: git rev-parse HEAD:gesso")
    parser.add_argument("--out", type=Path, help="The report; docs/gpu-acceptance.json if all groups run.")
    parser.add_argument(
        "--group",
        action="append",
        choices=[group.name for group in every],
        help="Only this group; may be repeated.",
    )
    parser.add_argument("--logs", type=Path, help="Keep the output of each group in this directory.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="Time limit for everything.")
    arguments = parser.parse_args(given)
    if not arguments.tree.strip():
        parser.error("--tree is empty; outside a git repository use make test-gpu TREE=<git rev-parse HEAD:gesso>")
    began = time.monotonic()
    machine = machine or probe()
    memory = SHARE * machine.pop("memory")
    print(f"{machine['device']}, torch {machine['torch']}, triton {machine['triton']}", flush=True)
    groups = [group for group in every if not arguments.group or group.name in arguments.group]
    complete = len(groups) == len(every)
    out: Path | None = arguments.out or (ROOT / "docs" / "gpu-acceptance.json" if complete else None)
    with tempfile.TemporaryDirectory(prefix="gesso-gpu-") as scratch:
        logs = arguments.logs or Path(scratch) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        tests: list[dict[str, Any]] = []

        def write(finished: bool) -> dict[str, Any]:
            report = summary(machine, arguments.tree.strip(), time.monotonic() - began, tests, finished and complete)
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            return report

        write(finished=False)  # if the run is killed, the report is not marked as passed
        for group, seconds, found in run_all(groups, logs, Path(scratch), memory, began + arguments.seconds):
            tests += found
            bad = [test for test in found if test["outcome"] != "passed"]
            print(f"{group.name}: {len(found) - len(bad)}/{len(found)} passed in {seconds:.0f} s", flush=True)
            for test in bad:
                print(f"  {test['outcome']}: {test['id']}\n    {test.get('message', '')}".rstrip(), flush=True)
            write(finished=False)
        report = write(finished=True)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in report["counts"].items())
    print(f"{counts} in {report['seconds']:.0f} s" + (f"; see {out}" if out else ""), flush=True)
    return 0 if set(report["counts"]) == {"passed"} else 1


def probe() -> dict[str, Any]:
    """Return the device, its memory in GB and the versions. Exit if the suite cannot run.

    Runs in another process: this one must not hold a CUDA context while tests measure the memory of the card.
    """
    missing = f"[name for name in {PACKAGES!r} if importlib.util.find_spec(name) is None]"
    program = (
        f"import importlib.util, json\nmissing = {missing}\nfound = {{'missing': missing}}\n"
        "if not {'torch', 'triton'} & set(missing):\n"
        "    import torch, triton\n"
        "    gpu = torch.cuda.is_available()\n"
        "    found |= {'device': torch.cuda.get_device_name() if gpu else 'CPU', 'torch': torch.__version__, "
        "'triton': triton.__version__, 'memory': torch.cuda.mem_get_info()[1] / 1e9 if gpu else 8}\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"torch cannot be imported:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    missing = found.pop("missing")
    if set(missing) & {"pytest", "torch", "triton"}:
        sys.exit(
            f"{sys.executable} has no {', '.join(missing)}: install them, or unpack their wheels into a directory "
            "and name it in PYTHONPATH"
        )
    if missing:
        print(f"missing, and tests that need them will fail: {', '.join(missing)}", flush=True)
    if found["device"] == "CPU" and "GESSO_GPU_DRY_RUN" not in os.environ:
        sys.exit("torch sees no GPU; GESSO_GPU_DRY_RUN=1 checks the logic of the tests on a CPU")
    return found


def run_all(
    groups: list[Group], logs: Path, scratch: Path, memory: float, until: float
) -> Iterator[tuple[Group, float, list[dict[str, Any]]]]:
    """Run all groups, and yield each with its seconds and its tests as it ends."""
    waiting = list(groups)
    running: list[Running] = []
    try:
        while waiting or running:
            for group in list(waiting):
                if fits(group, running, memory):
                    waiting.remove(group)
                    running.append(start(group, logs, scratch))
                    print(f"{group.name}: started", flush=True)
            for item in list(running):
                late = item.seconds > item.group.limit or time.monotonic() > until
                if item.process.poll() is None and not late:
                    continue
                stop(item)
                running.remove(item)
                yield item.group, item.seconds, tests_of(item, late)
            if time.monotonic() > until:
                for group in waiting:
                    yield (
                        group,
                        0.0,
                        [entry(group.name, "not run", 0.0, "the time limit of the whole suite was reached")],
                    )
                waiting.clear()
            time.sleep(0.2)
    finally:
        for item in running:
            stop(item)


def fits(group: Group, running: list[Running], memory: float) -> bool:
    """Return whether a group can start beside the running ones, with `memory` GB for all of them."""
    used = sum(item.group.memory for item in running)
    return not running or (len(running) < JOBS and used + group.memory <= memory)


def start(group: Group, logs: Path, scratch: Path) -> Running:
    log, xml = logs / f"{group.name}.log", scratch / f"{group.name}.xml"
    command = [
        sys.executable, "-m", "pytest", *group.targets, "-m", "gpu or not gpu", f"--junitxml={xml}",
        f"--basetemp={scratch / group.name}", "-p", "no:cacheprovider", "-v", "--durations=5",
        "-o", "filterwarnings=default",  # other versions of packages may give other warnings
    ]  # fmt: skip
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "2", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    return Running(group, process, log, xml)


def stop(item: Running) -> None:
    """End a group's process and those it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(item.process.pid, signal.SIGKILL)
    item.process.wait()
    shutil.rmtree(item.xml.with_suffix(""), ignore_errors=True)  # checkpoints of several GB


def tests_of(item: Running, late: bool) -> list[dict[str, Any]]:
    """Return the tests of a group that has ended, as pytest reports them, or one entry if there is no report."""
    if not item.xml.exists():
        outcome = "timeout" if late else "error"
        return [entry(item.group.name, outcome, item.seconds, tail(item.log))]
    found = []
    for case in ElementTree.parse(item.xml).iter("testcase"):
        outcome, message = "passed", ""
        for kind in ("failure", "error", "skipped"):
            if (part := case.find(kind)) is not None:
                outcome = {"failure": "failed", "error": "error", "skipped": "skipped"}[kind]
                message = f"{part.get('message', '')}".strip()[:1500]
                break
        file = str(case.get("classname", "")).replace(".", "/") + ".py"
        made = entry(f"{file}::{case.get('name')}", outcome, float(case.get("time", 0)), message)
        if figures := {part.get("name"): part.get("value") for part in case.iter("property")}:
            made["figures"] = figures
        found.append(made)
    if not found:
        found.append(entry(item.group.name, "error", item.seconds, tail(item.log)))
    return found


def entry(name: str, outcome: str, seconds: float, message: str = "") -> dict[str, Any]:
    lines = "\n".join(message.replace(f"{ROOT}", ".").splitlines()[:12])
    return {"id": name, "outcome": outcome, "seconds": round(seconds, 2)} | ({"message": lines} if lines else {})


def tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]) if log.exists() else ""


def summary(
    machine: dict[str, Any], tree: str, seconds: float, tests: list[dict[str, Any]], complete: bool
) -> dict[str, Any]:
    """Return the report. `passed` is true only if every group has run and every test has passed."""
    counts: dict[str, int] = {}
    for test in tests:
        counts[test["outcome"]] = counts.get(test["outcome"], 0) + 1
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "tree": tree,
        **machine,
        "seconds": round(seconds, 1),
        "passed": complete and set(counts) == {"passed"},
        "counts": counts,
        "tests": tests,
    }


if __name__ == "__main__":
    sys.exit(main())
