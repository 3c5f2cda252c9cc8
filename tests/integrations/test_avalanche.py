"""Avalanche, both ways: against the library itself. `make test-avalanche` installs it."""

from __future__ import annotations

import copy
import re
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from hashroute import Scenario, create_learner, load_learner, run
from hashroute.cli import main
from hashroute.integrations.avalanche_learners import KINDS
from hashroute.learners import find_learner
from hashroute.training.result import Comparison
from support import accuracy, assert_same, digits, fresh, learned, short_recipe
from torchvision_operators import define_missing

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")
NAMES = sorted(KINDS)
OPTIONS: dict[str, dict[str, int]] = {
    "avalanche:er": {"images": 60},
    "avalanche:gdumb": {"images": 60},
    "avalanche:icarl": {"images": 60},
    "avalanche:gem": {"images_per_task": 20},
}
"""Few images, so that it is quick."""


@pytest.fixture
def avalanche() -> None:
    """Needs the library."""
    if find_spec("avalanche") is None:
        pytest.skip("needs the extra avalanche: make test-avalanche")
    define_missing()


def few(name: str, epochs: int = 2, **options: Any) -> Any:
    return fresh(name, epochs, **OPTIONS.get(name, {}), **options)


# ------------------------------------------------------------------------ without the library


@pytest.mark.parametrize("name", NAMES)
def test_strategies_are_found_by_name_without_the_library(name: str) -> None:
    kind = find_learner(name)
    assert kind.name == name
    assert (kind.__doc__ or "").split("\n")[0].endswith(".")
    assert set(kind.grid) <= kind.Options.__dataclass_fields__.keys()
    assert create_learner(name, (3, 32, 32)).images_kept() == 0


def test_mistakes_get_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"^there is no learner 'avalanche:none': expected one of avalanche:er, [^\n]*$"
    ):
        find_learner("avalanche:none")
    monkeypatch.setitem(sys.modules, "avalanche", None)
    with pytest.raises(
        ValueError, match=r"^avalanche:er needs the package avalanche: pip install 'hashroute\[avalanche\]'$"
    ):
        few("avalanche:er").learn(digits().tasks[0])


# ------------------------------------------------------------------------ its strategies as our learners


@pytest.mark.usefixtures("avalanche")
@pytest.mark.parametrize("name", NAMES)
def test_strategies_learn_and_keep_as_many_images_as_they_say(name: str, tmp_path: Path) -> None:
    scenario = digits(3)
    result, learner = run(scenario, name, short_recipe(6), folder=tmp_path, options=OPTIONS.get(name, {}))
    kept = {"avalanche:si": 0, "avalanche:lwf": 0}.get(name, 60)
    assert result.images_kept == learner.images_kept() == kept
    if kept:
        images = learner.kept["images"]
        assert images.dtype == torch.uint8
        every = torch.cat([task.train.images for task in scenario.tasks]).flatten(1)
        assert all((every == image.flatten()).all(1).any() for image in images), "images of the tasks, as they are"
    assert result.accuracy[0][0] > 85
    assert result.images > (0 if name == "avalanche:gdumb" else 5) * sum(len(task.train) for task in scenario.tasks)
    again = load_learner(tmp_path)
    assert_same(again, learner)
    for index, task in enumerate(scenario.tasks):
        assert torch.equal(again.logits(task.test.images, index), learner.logits(task.test.images, index))
    with pytest.raises(ValueError, match="cannot go on with task 'more': what Avalanche keeps between tasks was not"):
        again.learn(replace(scenario.tasks[0], name="more"))


@pytest.mark.usefixtures("avalanche")
@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_learner(name: str) -> None:
    learners = []
    for disturbance in (0, 1):
        torch.manual_seed(disturbance)
        learners.append(few(name, 1, seed=3).learn(digits(2, 0.3)))
    assert_same(*learners)
    images = digits().tasks[0].test.images
    copied = copy.deepcopy(learners[0])
    assert torch.equal(copied(images), learners[0](images))


@pytest.mark.usefixtures("avalanche")
def test_without_a_method_the_network_is_trained_as_ours_is() -> None:
    """Batches differ, so numbers do; what is learned does not: the first task equals that of vc, the second forgets."""
    ours, theirs = learned("vc", 2, 10), few("avalanche:lwf", 10, distillation=0.0).learn(digits())
    assert ours.parameter_counts() == theirs.parameter_counts()
    for task in digits().tasks:
        assert abs(accuracy(ours, task) - accuracy(theirs, task)) < 0.15


@pytest.mark.usefixtures("avalanche")
def test_replay_protects_the_first_task() -> None:
    tasks = digits(4).tasks
    kept, plain = few("avalanche:er", 8), few("avalanche:lwf", 8, distillation=0.0)
    for learner in (kept, plain):
        for task in tasks:
            learner.learn(task)
    assert accuracy(kept, tasks[0]) >= accuracy(plain, tasks[0])
    assert accuracy(kept, tasks[0]) > 0.9


@pytest.mark.usefixtures("avalanche")
def test_tasks_of_different_numbers_of_classes_share_a_batch() -> None:
    first, second = digits(2, 0.5).tasks
    both = replace(
        second,
        name="four",
        train=replace(second.train, labels=second.train.labels + 2),
        class_names=("a", "b", *second.class_names),
        validation=replace(second.validation, labels=second.validation.labels + 2),
        test=replace(second.test, labels=second.test.labels + 2),
    )
    learner = few("avalanche:er", 6).learn(first).learn(both)
    assert learner.logits(first.test.images, 0).shape[1] == 2
    assert learner.logits(both.test.images, 1).shape[1] == 4
    assert accuracy(learner, first) > 0.8


@pytest.mark.usefixtures("avalanche")
def test_the_table_says_who_keeps_images(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["bench", "digits", "--learners", "vc", "avalanche:er", "--epochs", "1", "--fraction", "0.3"]
    assert main([*command, "--options", "avalanche:er.images=25"]) == 0
    printed = capsys.readouterr().out
    assert "images kept" in printed
    (file,) = tmp_path.glob("results/*.json")
    runs = Comparison.read(file).learners
    assert [(name, runs[name][0].images_kept) for name in runs] == [("vc", 0), ("avalanche:er(images=25)", 25)]


# ------------------------------------------------------------------------ our learners in Avalanche


def evaluator() -> Any:
    from avalanche.evaluation.metrics import accuracy_metrics, forgetting_metrics
    from avalanche.training.plugins import EvaluationPlugin

    return EvaluationPlugin(accuracy_metrics(experience=True, stream=True), forgetting_metrics(experience=True))


@pytest.mark.usefixtures("avalanche")
@pytest.mark.parametrize("task_labels", [True, False])
def test_a_learner_is_a_strategy_with_the_metrics_of_avalanche(task_labels: bool) -> None:
    from hashroute.integrations.avalanche import LearnerStrategy, as_benchmark

    scenario = Scenario("digits", digits(3, 0.5).tasks)
    benchmark = as_benchmark(scenario, task_labels)
    assert [len(experience.dataset) for experience in benchmark.train_stream] == [
        len(task.train) for task in scenario.tasks
    ]
    assert benchmark.test_stream[1].classes_in_this_experience == {2, 3}
    learner = fresh("hrn", 4)
    strategy = LearnerStrategy(learner=learner, evaluator=evaluator())
    for experience in benchmark.train_stream:
        strategy.train(experience)
        found = strategy.eval(benchmark.test_stream)
    labels = range(3) if task_labels else (0, 0, 0)
    for index, (label, task) in enumerate(zip(labels, scenario.tasks, strict=True)):
        theirs = found[f"Top1_Acc_Exp/eval_phase/test_stream/Task{label:03}/Exp{index:03}"]
        if task_labels:
            ours = accuracy(learner, replace(task, name=f"experience {index + 1}"))
        else:
            answer = learner.predict(task.test.images)
            ours = ((answer.tasks == index) & (answer.labels == task.test.labels)).double().mean().item()
        assert theirs == pytest.approx(ours)
    if task_labels:
        forgotten = [value for name, value in found.items() if name.startswith("ExperienceForgetting")]
        assert forgotten == [0.0, 0.0], "hrn forgets nothing"


@pytest.mark.usefixtures("avalanche")
def test_a_benchmark_of_avalanche_itself() -> None:
    from avalanche.benchmarks import nc_benchmark
    from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset as as_dataset

    from hashroute.integrations.avalanche import LearnerStrategy

    tasks = digits(2).tasks
    parts = []
    for part in ("train", "test"):
        splits = [getattr(task, part) for task in tasks]
        images = torch.cat([split.images for split in splits]).float() / 255
        labels = torch.cat([split.labels + 2 * place for place, split in enumerate(splits)])
        parts.append(as_dataset(images, labels))
    benchmark = nc_benchmark(*parts, n_experiences=2, task_labels=True, seed=0)
    strategy = LearnerStrategy(learner=fresh("vc", 4), evaluator=evaluator())
    experience = "Top1_Acc_Exp/eval_phase/test_stream/Task{0:03}/Exp{0:03}"
    before = strategy.eval(benchmark.test_stream)
    assert before[experience.format(1)] <= 0.7, "nothing was learned yet"
    strategy.train(benchmark.train_stream)
    found = strategy.eval(benchmark.test_stream)
    assert found[experience.format(1)] > 0.9


@pytest.mark.usefixtures("avalanche")
def test_the_code_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guide" / "avalanche.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(compile(code, "avalanche.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "0.0"


@pytest.mark.usefixtures("avalanche")
def test_normalised_images_get_one_line() -> None:
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset as as_dataset

    from hashroute.integrations.avalanche import LearnerStrategy

    train = digits().tasks[0].train
    benchmark = benchmark_from_datasets(train=[as_dataset(train.images / 64 - 1, train.labels)])
    with pytest.raises(ValueError, match=r"^the images of experience 1 go from -1 to 2.*: expected 0 to 1; give the"):
        LearnerStrategy(learner=fresh("vc"), evaluator=evaluator()).train(benchmark.train_stream)
