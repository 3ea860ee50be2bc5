"""Train one run: everything that happens is decided by the `Run`, down to the last bit on one machine.

AdamW (0.9, 0.98) on the mean cross-entropy of the supervised positions, linear warm-up, cosine decay to 5 %, gradients
clipped to norm 1, single precision, one thread. Every 100 steps a fixed validation set is looked at; after two looks in
a row above .998 (.996 on hard positions) a run stops early, if it may.

A run can be killed at any moment and taken up again from its checkpoint, to the same weights bit for bit: the data of a
step follow from the seed and the number of the step, and the rest of the state is in the checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from numpy import ndarray
from safetensors import SafetensorError
from torch import Tensor

from shiftbound import InputError, require, tasks
from shiftbound.optimiser import Optimiser
from shiftbound.positions import Encoding
from shiftbound.runs import Run
from shiftbound.transformer import Transformer

GATE = 0.95  # below this accuracy in distribution, an out-of-distribution number does not count
LOOK = 100  # steps between two looks at the validation set
CLEAN, CLEAN_HARD = 0.998, 0.996  # accuracy, and accuracy on hard positions, that twice in a row end a run early
VALIDATION = 256
WARM_UP, LAST_RATE = 100, 0.05
BLOCK, GROUP = 96, 8  # training data are drawn for a block of steps at a time, in groups of steps of one length
FORMAT, RECORD = "shiftbound training 1", ("steps", "log", "seconds_cpu", "seconds_wall", "data_hash")
UNREADABLE = (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError)


@dataclass
class Trained:
    """A trained model and how it came about.

    ``log`` has a row a look: ``step``, the mean training ``loss`` since the look before, validation ``accuracy``, and
    ``hard``, the accuracy on hard positions (None where there are none). ``data_hash`` is the SHA-256 chained over the
    training batches in the order of their use. The seconds cover the whole run, interruptions left out.
    """

    model: Transformer
    run: Run
    steps: int = 0
    log: list[dict] = field(default_factory=list)
    seconds_cpu: float = 0.0
    seconds_wall: float = 0.0
    data_hash: str = ""

    @property
    def passed_gate(self) -> bool:
        """Whether the last look saw an accuracy of at least .95."""
        return bool(self.log) and self.log[-1]["accuracy"] >= GATE

    @property
    def steps_to_gate(self) -> int | None:
        """The step of the first look that saw an accuracy of at least .95; None if none did."""
        return next((row["step"] for row in self.log if row["accuracy"] >= GATE), None)

    @property
    def complete(self) -> bool:
        """Whether all steps are taken, or the last two looks saw next to no error in a run that may stop early."""
        last = [(row["accuracy"], 1.0 if row["hard"] is None else row["hard"]) for row in self.log[-2:]]
        clean = [accuracy > CLEAN and hard > CLEAN_HARD for accuracy, hard in last]
        return self.steps == self.run.steps or (self.run.early_stop and clean == [True, True])

    def summary(self) -> dict[str, object]:
        """What a row of results says about the training."""
        return {
            "steps_taken": self.steps,
            "steps_to_gate": self.steps_to_gate,
            "loss": self.log[-1]["loss"] if self.log else None,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            **{name: getattr(self, name) for name in ("seconds_cpu", "seconds_wall", "data_hash")},
        }


def build(run: Run) -> Transformer:
    """The untrained model of ``run``: equal runs, equal weights.

    >>> build(Run(task="dyck", encoding="rope", depth=1, width=16)).head.weight.shape
    torch.Size([3, 16])
    """
    task = tasks.get(run.task, **dict(run.options))
    sizes = (task.vocab, task.classes, run.depth, run.width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        form = {"attention": run.attention, "log_scale": run.log_scale}
        return Transformer(*sizes, run.encoding, dropout=run.dropout, window=run.window or None, **form)


def learning_rate(run: Run, step: int) -> float:
    """The rate of ``step`` (from 0): a linear rise over 100 steps (a tenth of a run shorter than 1000), then a cosine
    down to 5 %.

    >>> run = Run(task="dyck", encoding="rope", depth=1, width=16, lr=1.0)
    >>> [round(learning_rate(run, step), 3) for step in (0, 99, 100, 550, 1000)]
    [0.01, 1.0, 1.0, 0.525, 0.05]
    """
    warm_up = min(WARM_UP, max(1, run.steps // 10))
    if step < warm_up:
        return run.lr * ((step + 1) / warm_up)
    cosine = (1 + math.cos(math.pi * (step - warm_up) / (run.steps - warm_up))) / 2
    return run.lr * (LAST_RATE + (1 - LAST_RATE) * cosine)


def train(
    run: Run,
    *,
    checkpoint: Path | str | None = None,
    every: int = 500,
    max_steps: int | None = None,
    watch: Callable[[Trained], None] | None = None,
    device: str = "cpu",
) -> Trained:
    """Train ``run`` and return the model with its log.

    With ``checkpoint`` the state is written there every ``every`` steps, and training goes on from that file where it
    exists; a run that comes to its end removes it. ``max_steps`` breaks off after that many steps in all, leaving a
    checkpoint. ``watch`` is called at every look with what is trained so far; it may run the model, but must leave
    torch's generator alone. ``device`` is "cpu", "cuda", "mps" or "auto" (the first of the latter two that is there,
    else cpu); numbers differ between devices, and the model comes back on the CPU.

    >>> train(Run(task="dyck", encoding="rope", depth=1, width=16, steps=2, length=8)).log[0]["step"]
    2
    """
    for name, given in {"every": every, "max_steps": max_steps}.items():
        require(given is None or given >= 1, name, given, "a whole number of at least 1")
    where, path = _device(device), None if checkpoint is None else Path(checkpoint)
    task, until = tasks.get(run.task, **dict(run.options)), min(run.steps, max_steps or run.steps)
    with _reproducible(where):
        torch.manual_seed(run.seed)
        trained = Trained(build(run).to(where).train(), run)
        optimiser = Optimiser(trained.model, run.decay)
        total = torch.zeros((), device=where)  # of the losses since the last look
        if path is not None:
            _resume(path, trained, optimiser, total)
        wall, cpu = time.perf_counter() - trained.seconds_wall, time.thread_time() - trained.seconds_cpu
        batches = _batches(run, task, trained.model.encoding, trained.steps)
        while trained.steps < until and not trained.complete:
            tokens, labels, ids = next(batches)
            data = trained.data_hash.encode() + tokens.astype("<i8").tobytes() + labels.astype("<i8").tobytes()
            trained.data_hash = hashlib.sha256(data).hexdigest()
            trained.model.encoding.schedule(trained.steps / run.steps)
            logits = trained.model(_tensor(tokens, where), _tensor(ids, where))
            loss = F.cross_entropy(logits.flatten(0, 1), _tensor(labels, where).flatten(), ignore_index=-1)
            optimiser.step(loss, learning_rate(run, trained.steps))
            total += loss.detach()
            trained.steps += 1
            if trained.steps % LOOK == 0 or trained.steps == run.steps:
                loss = total.item() / ((trained.steps - 1) % LOOK + 1)
                trained.log.append({"step": trained.steps, "loss": loss} | _look(trained.model, task))
                total.zero_()
                if watch is not None:
                    watch(trained)
                    trained.model.train()
            trained.seconds_wall, trained.seconds_cpu = time.perf_counter() - wall, time.thread_time() - cpu
            if path is not None and (trained.steps % every == 0 or trained.steps == until) and not trained.complete:
                _save(path, trained, optimiser, total)
        if path is not None and trained.complete:
            path.unlink(missing_ok=True)
        optimiser.release()
    trained.model.to("cpu").eval()
    return trained


def _batches(run: Run, task: tasks.Task, encoding: Encoding, start: int) -> Iterator[tuple[ndarray, ndarray, ndarray]]:
    """Tokens, labels and position ids of the steps from ``start`` on.

    A block of steps has a stream of its own, so that a resumed run need not redraw the blocks before. In a block,
    ``GROUP`` batches have one length, since drawing them together is several times faster, and the order is shuffled.
    """
    for block in range(start // BLOCK, -(-run.steps // BLOCK)):
        rng = np.random.default_rng([1000 + run.seed, block])
        groups = [task.train_batch(rng, GROUP * run.batch, run.length) for _ in range(BLOCK // GROUP)]
        for step, place in enumerate(rng.permutation(BLOCK).tolist(), BLOCK * block):
            group, part = divmod(place, GROUP)
            rows = slice(part * run.batch, (part + 1) * run.batch)
            tokens, labels = groups[group].tokens[rows], groups[group].labels[rows].copy()
            if run.control == "shuffled-labels":
                labels[labels >= 0] = rng.permutation(labels[labels >= 0])
            ids = encoding.training_ids(tokens.shape[1], rng, run.batch)
            if step >= start:
                yield tokens, labels, ids


def _tensor(array: ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)


@torch.no_grad()
def _look(model: Transformer, task: tasks.Task) -> dict[str, float | None]:
    """Accuracy on the validation set, over all supervised positions and over the hard ones."""
    batch = task.evaluation_batch(task.validation(), VALIDATION)
    right = model.eval()(_tensor(batch.tokens, model.head.weight.device)).argmax(-1).cpu().numpy() == batch.labels
    model.train()
    hard = float(right[batch.hard].mean()) if batch.hard.any() else None
    return {"accuracy": float(right[batch.labels >= 0].mean()), "hard": hard}


def _device(name: str) -> torch.device:
    seen = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    there, allowed = [kind for kind in seen if seen[kind]], "'cpu' or 'auto', or 'cuda' or 'mps' where torch sees one"
    require(name in ("cpu", "auto", *there), "device", name, allowed)
    return torch.device([*there, "cpu"][0] if name == "auto" else name)


@contextlib.contextmanager
def _reproducible(device: torch.device) -> Iterator[None]:
    """One thread, deterministic kernels and random numbers of our own; afterwards everything is as it was."""
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            torch.set_num_threads(1)
            # The same switch as use_deterministic_algorithms(True), which loads torch's compiler first.
            torch.set_deterministic_debug_mode("error")
            torch.utils.deterministic.fill_uninitialized_memory = False
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_deterministic_debug_mode(mode)
            torch.utils.deterministic.fill_uninitialized_memory = fill


# On disk ----------------------------------------------------------------------------------------------------------


def dump(trained: Trained) -> bytes:
    """A trained run as a safetensors file: the weights, with the run and its record as metadata."""
    return _pack(trained, trained.model.state_dict())


def load(data: bytes) -> Trained:
    """The inverse of `dump`; raises `InputError` for anything else.

    >>> run = Run(task="dyck", encoding="rope", depth=1, width=16)
    >>> load(dump(Trained(build(run), run))).run == run
    True
    """
    try:
        tensors, trained = _parse(data)
        trained.model.eval().load_state_dict(tensors)
    except UNREADABLE as error:
        raise InputError(f"these bytes do not hold a trained run: {error}") from error
    return trained


def _pack(trained: Trained, tensors: dict[str, Tensor]) -> bytes:
    record = json.dumps({name: getattr(trained, name) for name in RECORD})
    metadata = {"format": FORMAT, "run": trained.run.canonical(), "record": record}
    return safetensors.torch.save({name: each.cpu().contiguous() for name, each in tensors.items()}, metadata)


def _parse(data: bytes) -> tuple[dict[str, Tensor], Trained]:
    tensors = safetensors.torch.load(data)
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    if metadata.get("format") != FORMAT:
        raise ValueError(f"the format is not {FORMAT!r}")
    fields = json.loads(metadata["run"])
    run = Run(**fields | {"options": tuple(tuple(pair) for pair in fields["options"])})
    return tensors, Trained(build(run), run, **json.loads(metadata["record"]))


def _save(path: Path, trained: Trained, optimiser: Optimiser, total: Tensor) -> None:
    tensors = optimiser.tensors() | {"total": total, "rng": torch.get_rng_state()}
    if total.is_cuda:
        tensors["rng_cuda"] = torch.cuda.get_rng_state(total.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        file.write(_pack(trained, tensors))
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _resume(path: Path, trained: Trained, optimiser: Optimiser, total: Tensor) -> None:
    """Go to where the checkpoint left off. A missing one changes nothing; nor does a damaged or foreign one, aloud."""
    try:
        tensors, saved = _parse(path.read_bytes())
        if saved.run != trained.run:
            raise ValueError(f"it is of {saved.run.name}")
        pairs = [(value, tensors[name]) for name, value in (optimiser.tensors() | {"total": total}).items()]
        if any(value.shape != stored.shape for value, stored in pairs):
            raise ValueError("its sizes are others")
        torch.set_rng_state(tensors["rng"])
        if total.is_cuda:
            torch.cuda.set_rng_state(tensors["rng_cuda"], total.device)
    except FileNotFoundError:
        return
    except UNREADABLE as error:
        warnings.warn(f"the checkpoint {path.name} was not used, the run starts anew: {error}", stacklevel=3)
        return
    for value, stored in pairs:
        value.copy_(stored)
    optimiser.count = saved.steps
    vars(trained).update({name: getattr(saved, name) for name in RECORD})
