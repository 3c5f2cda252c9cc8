"""Two processes that share every batch learn what one process learns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hashroute import Scenario, Task, create_learner, run
from hashroute.learners import files, learner_names
from hashroute.learners.objectives import Objective, Rotation
from hashroute.nn.units import UnitSpec
from hashroute.tasks import Split
from ranks import on_ranks
from support import Stored, digits, short_recipe

OPTIONS: dict[str, dict[str, Any]] = {
    "hrn": {"fixed_features": 64, "max_units": 4},
    "hrn-paper": {"units": (UnitSpec(6, 3, 1, 1, norm_groups=1, dropout=0.3),) * 4, "features": 64, "grow": 6},
    "closed-form": {"fixed_features": 64},
    "ewc": {"samples": 31},
    "gpm": {"samples": 31},
    "ell": {"code_size": 40, "code_epochs": 1},
}
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5}
NOISY = dict.fromkeys(("ell", "lwf"), 1e-8)
"""Old heads start at the answers of their teacher here: their first gradients are noise, which Adam scales up."""
CASES = [(name, torch.float64) for name in learner_names()] + [("hrn", torch.float32), ("ewc", torch.float32)]


def tasks() -> list[Task]:
    """Three small tasks: the last batch of the first has one image, and images of the second are mirrored."""
    some = digits(3, 0.35).tasks
    first = some[0].train[torch.arange(65)]
    assert len(first) % short_recipe().batch_size == 1
    parts = {"validation": some[0].validation, "test": some[0].test, "class_names": some[0].class_names}
    return [
        Task("first", first, **parts),
        Task(some[1].name, *_splits(some[1]), some[1].class_names, frozenset({"flip", "shift"})),
        Task("again", *_splits(some[0]), some[0].class_names),
    ]


def _splits(task: Task) -> Sequence[Split]:
    return task.train, task.validation, task.test


def learn(name: str, dtype: torch.dtype, objective: str | type[Objective] = "classification") -> dict[str, Any]:
    """What there is after three tasks, an epoch each."""
    options = OPTIONS.get(name, {})
    learner = create_learner(name, (1, 8, 8), short_recipe(1), seed=1, objective=objective, **options).to(dtype)
    logs: list[Any] = []
    learner.learn(Scenario("three", tuple(tasks())), on_epoch=lambda log: logs.append((log.loss, log.score)))
    state = {name: tensor.clone() for name, tensor in files.state_of(learner).items() if name != "random"}
    actions = [decision.action for decision in learner.decisions]
    return {"state": state, "actions": actions, "logs": logs, "random": learner.random.state}


def learn_all() -> list[dict[str, Any]]:
    return [*(learn(*case) for case in CASES), learn("vc", torch.float64, Rotation)]


@pytest.fixture(scope="module")
def learned_by_two(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """For each case, what each of the two processes has learned."""
    found = on_ranks(learn_all, tmp_path_factory.mktemp("ranks"))
    assert not [each for each in found if isinstance(each, str)], found
    return list(zip(*found, strict=True))  # type: ignore[arg-type]


def check_same(alone: dict[str, Any], together: Sequence[dict[str, Any]], most: float) -> None:
    first, second = together
    assert first["state"].keys() == second["state"].keys() == alone["state"].keys()
    for name, tensor in first["state"].items():
        assert torch.equal(tensor, second["state"][name]), name
        _check_close(tensor, alone["state"][name], most, name)
    assert first["actions"] == second["actions"] == alone["actions"]
    assert torch.equal(first["random"], alone["random"])
    assert torch.equal(second["random"], alone["random"])
    assert second["logs"] == []  # rank 0 tells
    for (loss, score), (own_loss, own_score) in zip(first["logs"], alone["logs"], strict=True):
        assert loss is None or loss == pytest.approx(own_loss, abs=1e-5)
        assert score is None or score == pytest.approx(own_score, abs=1e-5)


def _check_close(tensor: Tensor, other: Tensor, most: float, name: str) -> None:
    assert tensor.shape == other.shape, name
    if tensor.is_floating_point() and "solution" not in name:
        difference = (tensor - other).abs().max().item() if tensor.numel() else 0.0
        size = max(1.0, other.abs().max().item()) if tensor.numel() else 1.0
        assert difference <= most * size, f"{name}: {difference}"
    else:
        assert torch.equal(tensor, other), name


@pytest.mark.parametrize("place", range(len(CASES)), ids=[f"{name} {dtype}" for name, dtype in CASES])
def test_weights_are_those_of_one_process(place: int, learned_by_two: list[list[dict[str, Any]]]) -> None:
    name, dtype = CASES[place]
    check_same(learn(name, dtype), learned_by_two[place], NOISY.get(name, CLOSE[dtype]))


def test_an_objective_may_make_several_views_of_an_image(learned_by_two: list[list[dict[str, Any]]]) -> None:
    check_same(learn("vc", torch.float64, Rotation), learned_by_two[-1], 1e-12)


# ------------------------------------------------------------------------ runs, and errors


def run_twice(folder: Path) -> list[Any]:
    """A run that is stopped by its caller after three epochs, and resumed."""
    seen: list[Any] = []

    def stop(record: dict[str, Any]) -> None:
        seen.append((record["task"], record["epoch"]))
        if len(seen) == 3:
            raise ValueError("enough")

    def go(resume: bool) -> Any:
        scenario = Scenario("digits", tuple(tasks()[:2]))
        options = OPTIONS["hrn"]
        return run(scenario, "hrn", short_recipe(2), options=options, folder=folder, resume=resume, on_epoch=stop)

    with pytest.raises(ValueError, match="enough"):
        go(False)
    result, learner = go(True)
    again, loaded = go(True)
    assert again.accuracy == result.accuracy
    assert files.state_of(loaded).keys() == files.state_of(learner).keys()
    return [seen, result.accuracy, result.task_free, result.decisions]


def test_a_run_is_written_once_and_resumed(tmp_path: Path) -> None:
    alone = run_twice(tmp_path / "alone")
    first, second = on_ranks(run_twice, tmp_path / "ranks", tmp_path / "together")
    assert first[0] == alone[0]
    assert second[0] == []
    assert first[1:3] == second[1:3] == alone[1:3]
    names = [sorted(path.name[-11:] for path in (tmp_path / who).iterdir()) for who in ("alone", "together")]
    assert names[0] == names[1]  # the end of a file that is named by its content
    lines = (tmp_path / "together" / "epochs.jsonl").read_text().splitlines()
    assert len(lines) == 4


def learn_what_fails_on_one(how: str) -> None:
    task, second = digits(1, 0.35).tasks[0], dist.get_rank() == 1
    images = Stored(task.train.images)
    images.broken = 5 if second and how == "unreadable" else -1
    train = Split(images, task.train.labels)
    if second and how == "fewer":
        train = train[torch.arange(40)]
    learner = create_learner("vc", (1, 8, 8), short_recipe(1))
    try:
        learner.learn(Task("strange", train, task.validation, task.test, task.class_names))
    except Exception as error:
        if learner.training_state is not None:
            learner.abort()
        with pytest.raises(ValueError, match="start all of them again"):
            learner.learn(task)
        raise error from None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("unreadable", "OSError: image 5 cannot be read"),
        ("fewer", "ValueError: rank 1 has other images than rank 0: give all ranks the same settings and data"),
    ],
)
def test_an_error_in_one_process_ends_all(how: str, message: str, tmp_path: Path) -> None:
    first, second = on_ranks(learn_what_fails_on_one, tmp_path, how)
    assert first.startswith("RanksError: rank 0 has lost another process: its own message says why")
    assert second == message
