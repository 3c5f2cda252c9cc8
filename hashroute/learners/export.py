"""Export to ONNX: one file that answers with a task given, and with none.

Inputs: `images`, uint8 (n, channels, height, width), and `task`, the index of a task, or -1 if none is given.
Outputs: `scores`, (n, all classes): with a task, the outputs of its head, and minus infinity for classes of others;
with none, the scores of `Learner.forward`. `answer`, (n,): the class with the highest score, among all classes of all
tasks. `answer_task`, (n,): the index of its task. The metadata has the tasks with their class names as JSON.
With a task given, only its own path is computed.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d, avg_pool2d, conv2d

from hashroute.learners.candidates import members_of, most_promising
from hashroute.learners.controls import HashOnly
from hashroute.learners.entries import TaskEntry
from hashroute.learners.hrn import HEAD_WEIGHT, HRN, SHARED_WEIGHT
from hashroute.learners.hrn_paper import HRNPaper
from hashroute.learners.learner import Learner
from hashroute.learners.objectives import Objective
from hashroute.learners.onnx_graph import Graph, Nodes
from hashroute.learners.shared_head import SHARPNESS
from hashroute.nn.forest import Forest, copy_weights, sum_by_halves
from hashroute.nn.gaussian import EDGES, edges
from hashroute.nn.hashing import NEGLIGIBLE, FeatureHash, largest_size
from hashroute.nn.patches import CONTRAST, LEVELS, THRESHOLD, pooling
from hashroute.nn.pretrained import FrozenStem
from hashroute.storage import replace_file

FORMAT = 1
"""Of the inputs, outputs and metadata."""


def export_onnx(learner: Learner, path: str | Path, metadata: dict[str, str] | None = None) -> None:
    """Write a learner as an ONNX file. metadata: more properties of the file."""
    try:
        import onnx
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError as error:
        raise ValueError(f"export to ONNX needs {error.name}: pip install 'hashroute[export]'") from None
    if isinstance(learner, HRNPaper):
        raise ValueError(f"{learner.name} routes every image on its own and cannot be exported: use hrn")
    if not learner.trained:
        raise ValueError(f"{learner.name} has no heads of its own and cannot be exported: use hrn")
    if not learner.tasks or learner.training_state is not None:
        what = "has learned no task yet" if not learner.tasks else "is learning a task"
        raise ValueError(f"this learner {what}: export it when a task is learned")
    try:
        graph = _build(copy.deepcopy(learner).cpu().float().eval())
    except (RuntimeError, TypeError, ValueError, torch.onnx.errors.OnnxExporterError) as error:
        lines = [line for line in str(error).splitlines() if line.startswith("<class")] or str(error).splitlines()
        what = " ".join((lines or [type(error).__name__])[0].split())[:200]
        raise ValueError(f"this {learner.name} cannot be written as ONNX, without branches on data: {what}") from None
    properties = {
        "format": str(FORMAT),
        "learner": learner.name,
        "image_shape": json.dumps(list(learner.image_shape)),
        "tasks": json.dumps([{"name": entry.name, "classes": list(entry.class_names)} for entry in learner.tasks]),
    }
    described = onnx.helper.make_tensor_value_info
    shape, classes = learner.image_shape, sum(learner.objective.outputs(entry) for entry in learner.tasks)
    model = graph.build(
        [described("images", onnx.TensorProto.UINT8, ["n", *shape]), described("task", onnx.TensorProto.INT64, [])],
        [
            described("scores", onnx.TensorProto.FLOAT, ["n", classes]),
            described("answer", onnx.TensorProto.INT64, ["n"]),
            described("answer_task", onnx.TensorProto.INT64, ["n"]),
        ],
        properties | (metadata or {}),
    )
    replace_file(Path(path), lambda file: file.write_bytes(model.SerializeToString()))


def _build(learner: Learner) -> Graph:
    """The graph of a learner that is in eval mode, in single precision."""
    graph, tasks = Graph(), len(learner.tasks)
    images = torch.zeros(2, *learner.image_shape, dtype=torch.uint8)
    (pixels,) = graph.module(graph.nodes, _Pixels(), {"images": images}, 1)
    example = images.float()
    inputs, shape = pixels, example
    if learner.backbone.stem is not None:
        (inputs,) = graph.module(graph.nodes, _Stem(learner.backbone.stem), {pixels: example}, 1)
        shape = torch.zeros(2, *learner.input_shape)
    least = graph.constant(np.array(-1))
    task = graph.operation(graph.nodes, "Max", ["task", least])
    free = graph.operation(graph.nodes, "Equal", [task, least])
    count = graph.operation(graph.nodes, "Shape", ["images"], start=0, end=1)

    def filled(value: float, columns: int) -> tuple[Nodes, str]:
        """Nodes that give (n, columns) of one value."""
        nodes: Nodes = []
        size = graph.operation(nodes, "Concat", [count, graph.constant(np.array([columns]))], axis=0)
        return nodes, graph.operation(nodes, "Expand", [graph.constant(np.float32(value)), size])

    shared = isinstance(learner, HRN) and len(learner.task_columns) > 0
    alone = shared and learner.backbone.stem is not None  # with no task given, the shared head answers alone
    parts: dict[int, tuple[str, str]] = {}
    alike: dict[Any, list[TaskEntry]] = {}
    for entry in learner.tasks:
        alike.setdefault(learner.feature_key(entry), []).append(entry)
    for entries in alike.values():
        inner: Nodes = []
        (features,) = graph.module(inner, _Encoder(learner, entries[0]), {inputs: shape}, 1)
        numbers = torch.zeros(2, learner.feature_count())
        skipped: Nodes = []
        answers, blanks = [], []
        for entry in entries:
            head = _Answer(learner.heads[entry.index], learner.objective, shared)
            answers += graph.module(inner, head, {features: numbers}, 2)
            for columns in (learner.objective.outputs(entry), 1):
                nodes, name = filled(-math.inf, columns)
                skipped += nodes
                blanks.append(name)
        wanted = graph.constant(np.array([*([] if alone else [-1]), *(entry.index for entry in entries)]))
        found = graph.operation(graph.nodes, "Equal", [task, wanted])
        found = graph.operation(graph.nodes, "Cast", [found], to=6)  # int32
        found = graph.operation(graph.nodes, "ReduceMax", [found], keepdims=0)
        found = graph.operation(graph.nodes, "Cast", [found], to=9)  # bool
        chosen = graph.branch(graph.nodes, found, (inner, answers), (skipped, blanks))
        parts |= {entry.index: (chosen[2 * at], chosen[2 * at + 1]) for at, entry in enumerate(entries)}
    logits, confidence = (
        graph.operation(graph.nodes, "Concat", [parts[index][part] for index in range(tasks)], axis=1)
        for part in range(2)
    )
    widths = [learner.objective.outputs(entry) for entry in learner.tasks]
    values = {logits: torch.zeros(2, sum(widths))}
    if not alone:
        nodes, none = filled(0.0, tasks)
        if isinstance(learner, HRN):
            inner = []
            asked = graph.module(inner, _MemoryPrior(learner), {"images": images}, 1)
            (prior,) = graph.branch(graph.nodes, free, (inner, asked), (nodes, [none]))
        else:
            graph.nodes += nodes
            prior = none
        values |= {confidence: torch.zeros(2, tasks), prior: torch.zeros(2, tasks)}
    if isinstance(learner, HRN) and shared:
        said = graph.module(graph.nodes, _Shared(learner), {inputs: shape}, 2)
        values |= {each: torch.zeros(2, sum(widths)) for each in said}
    scores = _SharedScores(widths) if alone else _FusedScores(widths) if shared else _Scores(widths)
    results = graph.module(graph.nodes, scores, {**values, task: torch.tensor(-1)}, 3)
    for name, result in zip(("scores", "answer", "answer_task"), results, strict=True):
        graph.nodes.append(_renamed(result, name))
    return graph


def _renamed(value: str, name: str) -> Any:
    import onnx

    return onnx.helper.make_node("Identity", [value], [name], name)


# -------------------------------------------------------------------- the parts of a learner, without branches on data


class _Pixels(nn.Module):
    """From uint8 to numbers from 0 to 1."""

    def forward(self, images: Tensor) -> Tensor:
        return images.to(torch.float32) / 255


class _Stem(nn.Module):
    """A frozen stem, for any number of images at once."""

    def __init__(self, stem: FrozenStem) -> None:
        super().__init__()
        self.stem = stem

    def forward(self, pixels: Tensor) -> Tensor:
        maps: Tensor = self.stem.network(self.stem.prepare(pixels))
        return maps


class _Answer(nn.Module):
    """The outputs of a head, as log-probabilities beside a shared head, and its confidence as a column."""

    def __init__(self, head: nn.Module, objective: Objective, shared: bool) -> None:
        super().__init__()
        self.head = head
        self.objective = objective
        self.shared = shared

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.head(features)
        return outputs.log_softmax(1) if self.shared else outputs, self.objective.confidence(outputs)[:, None]


class _Shared(nn.Module):
    """What the shared head of `hrn` says about each class: with no task given, and by the columns of its task."""

    places: Tensor
    owned: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, learner: HRN) -> None:
        super().__init__()
        assert learner.shared is not None
        self.fixed: Any = _Patches(learner.shared.fixed) if learner.backbone.stem is None else learner.shared.fixed
        entries, solution = learner.entries, learner.shared.solution
        self.mirrors = [entry.mirror for entry in entries]
        self.widths = [len(entry.class_names) for entry in entries]
        self.register_buffer("places", torch.tensor([column for entry in entries for column in entry.columns]))
        owned = torch.zeros(2, learner.shared.sums.classes)
        for entry in entries:
            owned[int(entry.mirror), list(entry.columns)] = 1
        owned[0] *= 1 - owned[1]  # a class of both kinds is asked with both views
        self.register_buffer("owned", owned)
        self.register_buffer("weight", solution.weight)
        self.register_buffer("bias", solution.bias)
        self.columns = nn.ModuleList(learner.task_columns[entry.index] for entry in entries)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """inputs: pixels from 0 to 1, or maps of the stem. Returns log-probabilities: twice (n, all classes)."""
        features = {mirror: self.fixed(inputs, mirror) for mirror in sorted(set(self.mirrors))}
        parts = [(each @ self.weight + self.bias) * self.owned[int(mirror)] for mirror, each in features.items()]
        free = (SHARPNESS * sum(parts)).log_softmax(1)[:, self.places]
        pairs = zip(self.columns, self.mirrors, strict=True)
        return free, torch.cat([columns(features[mirror]) for columns, mirror in pairs], 1)


class _Patches(nn.Module):
    """`PatchFeatures` as convolutions, for any number of images at once."""

    kernel: Tensor
    offset: Tensor
    scale: Tensor
    pooling: Tensor

    def __init__(self, fixed: Any) -> None:
        super().__init__()
        channels, height, width = fixed.image_shape
        self.side = fixed.side
        self.numbers = len(fixed.weight)
        self.register_buffer("kernel", fixed.weight.T.reshape(-1, channels, fixed.side, fixed.side).contiguous())
        self.register_buffer("offset", fixed.offset.view(-1, 1, 1))
        self.register_buffer("scale", fixed.scale)
        self.register_buffer("pooling", pooling(height - fixed.side + 1, width - fixed.side + 1, fixed.grid))

    def forward(self, pixels: Tensor, mirror: bool) -> Tensor:
        pooled = self._pooled(pixels)
        if mirror:
            pooled = (pooled + self._pooled(pixels.flip(3))) / 2
        return (pooled.clamp_min(0).sqrt() * self.scale).clamp(0, LEVELS)

    def _pooled(self, pixels: Tensor) -> Tensor:
        mean = avg_pool2d(pixels.mean(1, keepdim=True), self.side, 1)
        height, width = mean.shape[2:]
        squares = torch.zeros_like(mean)
        for down in range(self.side):  # the mean of squares less the square of the mean would lose digits
            for right in range(self.side):
                centred = pixels[:, :, down : down + height, right : right + width] - mean
                squares = squares + centred.square().sum(1, keepdim=True)
        responses = conv2d(pixels, self.kernel) * (squares / (self.numbers - 1) + CONTRAST).rsqrt() - self.offset
        beyond = (responses - responses.clamp(-THRESHOLD, THRESHOLD)).flatten(2).transpose(1, 2)
        signed, absolute = self.pooling @ beyond, self.pooling @ beyond.abs()
        return torch.cat([absolute + signed, absolute - signed], 1).flatten(1) / 2


class _Scores(nn.Module):
    """The scores of all classes and the answer, from what heads and memories say."""

    columns: Tensor
    members: Tensor

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths = list(widths)
        owners = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
        self.register_buffer("columns", owners)
        self.register_buffer("members", members_of(owners.tolist()))

    def forward(self, logits: Tensor, confidence: Tensor, prior: Tensor, task: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """logits: (n, all classes); confidence, prior: (n, tasks); task: ()."""
        best = logits[:, self.members].amax(2)
        free = (prior + confidence)[:, self.columns] + (logits - best[:, self.columns])
        return self.answers(free, logits, task)

    def answers(self, free: Tensor, given: Tensor, task: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, the best class and its task. free, given: the scores with no task given, and with one."""
        given = torch.where(self.columns == task, given, torch.full_like(given, -torch.inf))
        scores = torch.where(task < 0, free, given)
        answer = scores.argmax(1)
        return scores, answer, self.columns[answer]


class _FusedScores(_Scores):
    """The same with a shared head; see `HRN.class_scores`."""

    def forward(  # type: ignore[override]
        self, logits: Tensor, confidence: Tensor, prior: Tensor, among_all: Tensor, in_task: Tensor, task: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """logits: log-probabilities by the heads; among_all, in_task: by the shared head; each (n, all classes)."""
        shared = SHARED_WEIGHT * among_all
        prior = most_promising(prior, shared, self.widths)
        free = (prior + confidence)[:, self.columns] + HEAD_WEIGHT * logits + shared
        return self.answers(free, logits + in_task, task)


class _SharedScores(_Scores):
    """The same on a frozen stem: with no task given, the shared head answers alone."""

    def forward(
        self, logits: Tensor, among_all: Tensor, in_task: Tensor, task: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As above, without what heads and memories say about tasks."""
        return self.answers(among_all, logits + in_task, task)


class _Encoder(nn.Module):
    """From pixels from 0 to 1, or the maps of a stem, to the features of a task."""

    mean: Tensor
    std: Tensor

    def __init__(self, learner: Learner, task: TaskEntry) -> None:
        super().__init__()
        mean, std = learner.pixel_statistics(task) if learner.backbone.stem is None else ((0.0,), (1.0,))
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))
        encoder: Any = learner.task_encoder(task)
        if isinstance(learner, HRN):
            encoder = _Path(learner, learner.entries[task.index].path)
        elif isinstance(learner, HashOnly):
            encoder = _Hash(encoder.hash, learner.input_shape)
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.encoder((images - self.mean) / self.std)
        return features


class _Path(nn.Module):
    """The features of a path of `hrn`; see `Forest`. Forks of low rank become plain weights."""

    def __init__(self, learner: HRN, path: int) -> None:
        super().__init__()
        self.forest = Forest(learner.backbone, learner.encoder.features, learner.seed)
        with torch.random.fork_rng(devices=[]):
            self.forest.grow()
        copy_weights(learner.encoder.paths[path], self.forest.paths[0])
        self.forest.eval()
        with torch.no_grad():
            maps = list(self.forest.maps(torch.zeros(1, *learner.input_shape), 0))
        pairs = zip(self.forest.hashes, maps, strict=True)
        self.hashes = nn.ModuleList(_Hash(phi, each.shape[1:], centre=True) for phi, each in pairs)

    def forward(self, images: Tensor) -> Tensor:
        pairs = zip(self.hashes, self.forest.maps(images, 0), strict=True)
        return sum_by_halves([phi(maps) for phi, maps in pairs])


class _Hash(nn.Module):
    """A feature hashing function for maps of one shape, as sums of gathered numbers; see `FeatureHash`.

    Every bucket has the indices that fall into it as a column of a table; short columns point to a zero.
    """

    places: Tensor
    signs: Tensor

    def __init__(self, phi: FeatureHash, shape: Sequence[int], centre: bool = False) -> None:
        super().__init__()
        self.centre = centre
        length = math.prod(shape)
        table = phi.table(length).numpy()
        buckets, negative = table % phi.features, table >= phi.features
        order = np.argsort(buckets, kind="stable")
        counts = np.bincount(buckets, minlength=phi.features)
        ranks = np.arange(length) - np.repeat(counts.cumsum() - counts, counts)
        places = np.full((int(counts.max()), phi.features), length)
        places[ranks, buckets[order]] = order
        signs = np.append(np.where(negative, -1.0, 1.0), 0.0).astype(np.float32)
        self.register_buffer("places", torch.from_numpy(places))
        self.register_buffer("signs", torch.from_numpy(signs[places]))

    def forward(self, maps: Tensor) -> Tensor:
        """maps: (n, channels, height, width). Returns (n, features), each row of norm 1 or 0."""
        values = maps.flatten(1)
        largest = largest_size(values)
        if self.centre:
            values = values - values.mean(1, keepdim=True)
        size = largest_size(values)
        values = values / size.clamp_min(torch.finfo(values.dtype).tiny)[:, None]
        values = torch.cat([values, torch.zeros_like(values[:, :1])], 1)
        hashed = (values[:, self.places] * self.signs).sum(1)
        norms = torch.linalg.vector_norm(hashed, dim=1, keepdim=True)
        alive = norms > NEGLIGIBLE
        if self.centre:
            alive = alive & (size > NEGLIGIBLE * largest)[:, None]
        unit: Tensor = hashed / norms.clamp_min(NEGLIGIBLE) * alive
        return unit


class _MemoryPrior(nn.Module):
    """The evidence for each task from the Gaussian memories of `hrn`; see `HRN.task_prior`."""

    def __init__(self, learner: HRN) -> None:
        super().__init__()
        self.prior_of = learner.prior_of
        self.memories = learner.memories
        channels, height, width = learner.image_shape
        self.hash = _Hash(learner.memory_hash, (6 * channels, EDGES, EDGES))
        sides = {side - less for side in (height, width) for less in range(3)}
        self.windows = {side: adaptive_avg_pool1d(torch.eye(side)[None], EDGES)[0] for side in sides}

    def forward(self, images: Tensor) -> Tensor:
        """images: (n, channels, height, width), uint8. Returns (n, tasks)."""
        found = edges(images.to(torch.float32), self._pool)
        return self.prior_of(self.memories.log_likelihood(self.hash(found)))

    def _pool(self, maps: Tensor, side: int) -> Tensor:  # noqa: ARG002
        """Average on a grid, as two matrix products: ONNX pools only to sides that divide."""
        height, width = maps.shape[2:]
        return self.windows[height].T @ maps @ self.windows[width]
