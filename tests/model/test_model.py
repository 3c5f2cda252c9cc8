"""A model in a folder: what it learns stays, what it forgets is gone, and repeated commands change nothing."""

# ruff: noqa: ARG005

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

import hashroute
from hashroute import Model, Task
from hashroute.learners.checkpoints import pack, unpack
from hashroute.model.lessons import LearnReport, Progress
from hashroute.model.sources import open_sources
from hashroute.model.store import Store
from support import digits, learned

Arrays = tuple[NDArray[Any], NDArray[Any]]


def some_digits(*classes: int, skip: int = 0) -> Arrays:
    """Up to sixty images of each of these digits, (n, 8, 8) from 0 to 1, and their labels."""
    data = load_digits()
    rows = np.concatenate([np.flatnonzero(data.target == label)[skip : skip + 60] for label in classes])
    return (data.images[rows] / 16).astype(np.float32), data.target[rows]


def teach(folder: Path, *tasks: str, private: str = "") -> Model:
    """A model that learns tasks such as "01", the digits 0 and 1; it grows where it is told to."""
    model = Model(folder, size=8)
    for task in tasks:
        model.learn(some_digits(*map(int, task)), task, epochs=2, private=task == private)
    return model


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def right(model: Model, data: Arrays, task: str | None = None) -> float:
    answers = model.predict(data[0], task)
    return float(np.mean([each.class_name == str(label) for each, label in zip(answers, data[1], strict=True)]))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three pairs of digits; not to be changed."""
    folder = tmp_path_factory.mktemp("three")
    teach(folder, "01", "23", "45")
    return folder


@pytest.fixture
def copy(three: Path, tmp_path: Path) -> Model:
    """A model of three pairs of digits, to be changed."""
    shutil.copytree(three, tmp_path / "model")
    return Model(tmp_path / "model")


# -------------------------------------------------------------------- learning and answers


def test_it_answers_with_and_without_the_task(three: Path) -> None:
    model = Model(three)
    for task in ("01", "23", "45"):
        assert right(model, some_digits(*map(int, task), skip=60), task) > 0.9
    everything = some_digits(0, 1, 2, 3, 4, 5, skip=60)
    answers = model.predict(everything[0])
    assert right(model, everything) > 0.6
    assert {answer.task for answer in answers} == {"01", "23", "45"}
    assert all(answer.class_name in answer.task for answer in answers)


def test_probabilities_of_all_classes_are_ordered_and_sum_to_one(three: Path) -> None:
    for answer in Model(three).predict(some_digits(0, 3)[0], top=99):
        chances = [each.probability for each in answer.top]
        assert len(chances) == 6
        assert sum(chances) == pytest.approx(1)
        assert chances == sorted(chances, reverse=True)
        assert (answer.class_name, answer.task, answer.probability) == answer.top[0]


def test_old_answers_stay_bit_for_bit(copy: Model) -> None:
    images = some_digits(0, 1, 2, 3, 4, 5)[0]
    before = {
        task: copy.learner().logits(torch.from_numpy(images[:, None]).expand(-1, 3, -1, -1), task)
        for task in ("01", "45")
    }
    copy.learn(some_digits(6, 7), "67", epochs=1)
    copy.learn(some_digits(8), "23", epochs=1)
    copy.rename("67", "last")
    for task, logits in before.items():
        again = copy.learner().logits(torch.from_numpy(images[:, None]).expand(-1, 3, -1, -1), task)
        assert torch.equal(again, logits)


def test_a_task_gets_a_new_class_and_keeps_the_old_ones(copy: Model) -> None:
    report = copy.learn(some_digits(8), "23", epochs=10)
    assert (report.classes, report.new_classes) == (("2", "3", "8"), ("8",))
    assert right(copy, some_digits(8, skip=60), "23") > 0.8
    assert right(copy, some_digits(2, 3, skip=60), "23") > 0.8


def test_a_task_gets_more_images(copy: Model) -> None:
    report = copy.learn(some_digits(2, 3, skip=60), "23", epochs=5)
    assert report.new_classes == ()
    assert copy.tasks()[1].images == 2 * (60 - 6) * 2
    assert right(copy, some_digits(2, 3), "23") > 0.9


def gratings(count: int, seed: int) -> Arrays:
    """Noisy waves in one of four directions: fresh units hardly tell them apart, trained units do."""
    random, labels = np.random.default_rng(seed), np.arange(count) % 4
    rows, columns = np.mgrid[:16, :16]
    down, across = (turn(labels * np.pi / 4)[:, None, None] for turn in (np.cos, np.sin))
    waves = np.sin(1.6 * (down * rows + across * columns) + random.uniform(0, 6.3, (count, 1, 1)))
    return (0.5 + 0.2 * waves + random.normal(0, 0.2, waves.shape)).clip(0, 1).astype(np.float32), labels


class Further(NamedTuple):
    """A model whose first task has seen few images, and the same model after it has seen many."""

    few: Path
    many: Path
    report: LearnReport
    seen: list[Progress]


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> Further:
    """Learned once; not to be changed."""
    folder = tmp_path_factory.mktemp("further")
    seen: list[Progress] = []
    few = Model(folder / "few")
    few.learn(gratings(16, seed=0), "waves", epochs=1)
    few.learn(some_digits(6, 7), "67", epochs=1)
    many = Model(shutil.copytree(few.path, folder / "many"))
    report = many.learn(gratings(400, seed=1), "waves", epochs=8, progress=seen.append)
    return Further(few.path, many.path, report, seen)


def test_more_images_earn_a_fork_and_no_other_task_changes(further: Further, tmp_path: Path) -> None:
    model, report = Model(shutil.copytree(further.many, tmp_path / "model")), further.report
    assert report.notes[-1].startswith("the units of the task were forked and trained further (")
    assert right(model, gratings(200, seed=2), "waves") > 0.9
    waves, other = (model.records()[name] for name in ("waves", "67"))
    assert waves.earlier == (waves.parent,) == (other.parent,), "the other task was forked from the earlier units"
    assert model.descendants("waves") == ["67"]
    answers = model.predict(some_digits(6, 7)[0], "67", top=2)
    assert "as it was" in model.undo()
    assert model.predict(some_digits(6, 7)[0], "67", top=2) == answers
    assert model.records()["67"] == other
    assert model.records()["waves"].objects["path"] == waves.parent
    assert model.verify() == []


def test_an_interrupted_further_lesson_resumes_and_ends_in_the_same_model(further: Further, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.epoch == 3:
            raise Stop

    assert further.seen[-1].images == further.seen[-1].total == 8 * further.report.images
    stopped = Model(shutil.copytree(further.few, tmp_path / "stopped"))
    with pytest.raises(Stop):
        stopped.learn(gratings(400, seed=1), "waves", epochs=8, progress=stop)
    assert stopped.unfinished() == 0, "every task that it has is whole"
    assert stopped.verify() == []
    assert stopped.learn(gratings(400, seed=1), "waves", epochs=8).resumed_at == 3
    assert content(stopped.path) == content(further.many)


def test_the_same_images_are_not_learned_twice(copy: Model) -> None:
    before = content(copy.path)
    report = copy.learn(some_digits(2, 3), "23", epochs=2)
    assert "learned before" in report.notes[0]
    assert content(copy.path) == before


def test_two_models_that_learned_the_same_are_the_same(three: Path, tmp_path: Path) -> None:
    np.random.seed(1)  # random numbers of the program do not matter
    torch.manual_seed(1)
    teach(tmp_path, "01", "23", "45")
    assert content(tmp_path) == content(three)


def test_learning_leaves_the_random_numbers_of_the_program_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    teach(tmp_path, "01").predict(some_digits(0)[0])
    assert torch.equal(torch.rand(3), expected)


def test_noise_and_constants_are_unfamiliar_and_digits_are_not(copy: Model) -> None:
    copy.learn(some_digits(8), "23", epochs=1)  # a joined memory, too
    known = copy.predict(some_digits(0, 2, 5, 8, skip=60)[0])
    assert np.mean([answer.familiar for answer in known]) > 0.9
    noise = np.random.default_rng(0).random((50, 8, 8))
    assert np.mean([answer.familiar for answer in copy.predict(noise)]) < 0.2
    assert not any(answer.familiar for answer in copy.predict(np.full((5, 8, 8), 0.5)))


# -------------------------------------------------------------------- undo, forget, rename, verify


def test_memories_with_the_ranges_of_four_numbers_are_read(copy: Model) -> None:
    """Models of earlier versions have them."""
    manifest, records = copy.store.read(), copy.records()
    for name, record in records.items():
        memory = copy.store.tensors(record.objects["memory"])
        old = copy.store.put_tensors({**memory, "ranges": memory["ranges"][:4].clone()})
        records[name] = replace(record, objects={**record.objects, "memory": old})
    names = {name: copy.store.put_json(record.to_dict()) for name, record in records.items()}
    copy.store.commit(replace(manifest, tasks=names, history=()))
    test = some_digits(0, 1, 2, 3, skip=60)[0]
    assert np.mean([answer.familiar for answer in copy.predict(test)]) > 0.9
    assert not any(answer.familiar for answer in copy.predict(np.full((5, 8, 8), 0.5)))


def test_undo_goes_back_step_by_step(three: Path, copy: Model) -> None:
    first = content(copy.path)
    copy.learn(some_digits(8), "23", epochs=1)
    second = content(copy.path)
    copy.rename("23", "238")
    assert [each.name for each in copy.tasks()] == ["01", "238", "45"]
    assert "called 23 again" in copy.undo()
    assert content(copy.path) == second
    assert "before it was last learned" in copy.undo()
    assert content(copy.path) == first == content(three)
    for task in ("45", "23", "01"):
        assert f"{task} is not known any more" in copy.undo()
    with pytest.raises(ValueError, match="no change that can be undone"):
        copy.undo()
    assert copy.tasks() == []


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_private_task_that_is_forgotten_leaves_the_model_that_never_saw_it(
    place: int, three: Path, tmp_path: Path
) -> None:
    order = ["01", "23", "45"]
    order.insert(place, "67")
    model = teach(tmp_path, *order, private="67")
    assert content(tmp_path) != content(three)
    model.learn(some_digits(8), "67", epochs=1)  # private as it was
    assert model.tasks()[place].private
    assert model.forget("67") == []
    assert content(tmp_path) == content(three)


def test_what_is_forgotten_does_not_come_back(copy: Model) -> None:
    copy.forget("45")
    assert [each.name for each in copy.tasks()] == ["01", "23"]
    copy.undo()
    assert [each.name for each in copy.tasks()] == ["01"]
    assert copy.verify() == []


def test_forgetting_names_the_tasks_that_descend(copy: Model) -> None:
    assert copy.descendants("01") == ["23", "45"]
    assert copy.forget("01") == ["23", "45"]
    assert right(copy, some_digits(2, 3), "23") > 0.9
    copy.learn(some_digits(6, 7), "67", epochs=1)
    assert copy.verify() == []


def test_a_private_task_is_not_the_parent_of_another(tmp_path: Path) -> None:
    model = teach(tmp_path, "01", "23", "45", private="23")
    assert model.descendants("23") == []
    assert "23" not in json.dumps(model.records()["45"].decision)


def test_reading_needs_only_the_units_that_are_asked(copy: Model) -> None:
    heads = {name: record.objects["head"] for name, record in copy.records().items()}
    for task in ("01", "45"):
        (copy.path / "objects" / heads[task]).unlink()
    assert right(Model(copy.path), some_digits(2, 3), "23") > 0.9
    assert len(copy.verify()) == 2


def test_an_open_model_follows_the_changes_of_another(copy: Model) -> None:
    other = Model(copy.path)
    assert copy.predict(some_digits(6)[0][:1], top=99)[0].top[-1].task in ("01", "23", "45")
    other.learn(some_digits(6, 7), "67", epochs=1)
    assert {each.task for each in copy.predict(some_digits(6)[0][:1], top=99)[0].top} == {"01", "23", "45", "67"}
    other.forget("67")
    assert {each.task for each in copy.predict(some_digits(6)[0][:1], top=99)[0].top} == {"01", "23", "45"}


@pytest.mark.parametrize("ask", [Model.tasks, Model.records, Model.verify, lambda model: model.descendants("01")])
def test_what_another_process_forgets_meanwhile_is_not_missed(ask: Callable[[Model], object], copy: Model) -> None:
    class Disturbed(Store):
        """Another process changes the model when a record is about to be read."""

        def json(self, name: str) -> dict[str, Any]:
            if "45" in Store(self.path).read().tasks:
                Model(self.path).forget("45")
            return super().json(name)

    copy.store = Disturbed(copy.path)
    found = ask(copy)
    assert found == ask(Model(copy.path))


# -------------------------------------------------------------------- interruptions


class Stop(Exception):
    pass


def test_an_interrupted_lesson_resumes_and_ends_in_the_same_model(three: Path, tmp_path: Path) -> None:
    model = teach(tmp_path, "01", "23")
    seen: list[Progress] = []

    def stop(progress: Progress) -> None:
        seen.append(progress)
        if progress.epoch == 1:
            raise Stop

    before = model.store.read()
    with pytest.raises(Stop):
        model.learn(some_digits(4, 5), "45", epochs=2, progress=stop)
    assert model.store.read() == before
    assert model.unfinished() == 1
    report = model.learn(some_digits(4, 5), "45", epochs=2, progress=seen.append)
    assert report.resumed_at == 1
    assert seen[-1].images == seen[-1].total
    assert content(tmp_path) == content(three)


def test_an_unfinished_task_can_be_given_up(tmp_path: Path) -> None:
    model = teach(tmp_path, "01", "23")
    before = content(tmp_path)

    def stop(progress: Progress) -> None:
        assert progress.total == 2 * 108
        raise Stop

    with pytest.raises(Stop):
        model.learn(some_digits(4, 5), "45", epochs=2, private=True, progress=stop)
    model.forget("45")
    assert content(tmp_path) == before


def test_other_images_do_not_go_on_from_a_checkpoint(three: Path, tmp_path: Path) -> None:
    model = teach(tmp_path, "01", "23")

    def stop(progress: Progress) -> None:
        if progress.epoch == 1:
            raise Stop

    with pytest.raises(Stop):
        model.learn(some_digits(4, 5, skip=30), "45", epochs=2, progress=stop)
    assert model.learn(some_digits(4, 5), "45", epochs=2).resumed_at is None
    assert content(tmp_path) == content(three)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two pairs of digits that was stopped while it learned the third; not to be changed."""
    folder = tmp_path_factory.mktemp("interrupted")
    model = teach(folder, "01", "23")

    def stop(progress: Progress) -> None:
        if progress.epoch == 1:
            raise Stop

    with pytest.raises(Stop):
        model.learn(some_digits(4, 5), "45", epochs=2, progress=stop)
    return folder


WRONG_PARTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no head": lambda parts: parts.pop("head"),
    "another head": lambda parts: parts["head"].update({name: torch.zeros(3) for name in parts["head"]}),
    "another path": lambda parts: parts["entry"].update(path=10**9),
    "more classes": lambda parts: parts["entry"].update(class_names=["x"] * 10**5),
    "no decision": lambda parts: parts["entry"].update(decision=None),
    "another parent": lambda parts: parts.update(parent=-7),
    "an epoch before all": lambda parts: parts["training"].update(epoch=-(10**9)),
    "an epoch after all": lambda parts: parts["training"].update(epoch=10**9),
    "no schedule": lambda parts: parts["training"].update(schedule={}),
    "another schedule": lambda parts: parts["training"]["schedule"].update(_schedule_phases=[{}]),
    "what is missed at the end": lambda parts: parts["training"]["scratch"].pop("scores"),
    "no random numbers": lambda parts: parts.update(random=torch.zeros(5056, dtype=torch.uint8)),
}


@pytest.mark.parametrize("wrong", WRONG_PARTS)
def test_a_checkpoint_with_wrong_parts_does_not_count(
    wrong: str, interrupted: Path, three: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(interrupted, tmp_path / "model")
    (path,) = folder.glob("unfinished/*.pt")
    parts = unpack(path)
    WRONG_PARTS[wrong](parts)
    path.write_bytes(pack(parts))
    report = Model(folder).learn(some_digits(4, 5), "45", epochs=2)
    assert report.resumed_at is None
    assert [note.partition(" (")[0] for note in report.notes if "began anew" in note] == [
        "its checkpoint cannot be used"
    ]
    assert content(folder) == content(three)


MUCH: dict[str, Callable[[dict[str, Any]], object]] = {
    "features": lambda settings: settings["recipe"].update(features=2**26),
    "head": lambda settings: settings["recipe"].update(head={**settings["recipe"]["head"], "widths": [10**6, 10**6]}),
    "layers": lambda settings: settings["recipe"].update(
        head={**settings["recipe"]["head"], "widths": [1] * 10**5, "dropout": [0.0] * 10**5}
    ),
    "units": lambda settings: settings["recipe"].update(backbone=settings["recipe"]["backbone"] * 500),
    "images": lambda settings: settings.update(image_shape=[4096, 4096, 4096]),
    "maps": lambda settings: settings.update(image_shape=[1, 4096, 4096]),
}


@pytest.mark.parametrize("what", MUCH)
def test_settings_that_ask_for_much_more_than_is_stored_are_one_line(what: str, copy: Model) -> None:
    manifest = json.loads((copy.path / "manifest.json").read_text())
    MUCH[what](manifest["settings"])
    (copy.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="the settings of the model are damaged") as caught:
        Model(copy.path).predict(some_digits(0)[0], "01")
    assert len(str(caught.value)) < 300


def test_a_manifest_of_too_many_tasks_or_values_is_one_line(copy: Model) -> None:
    path = copy.path / "manifest.json"
    manifest = json.loads(path.read_text())
    record = manifest["tasks"]["01"]
    path.write_text(json.dumps({**manifest, "tasks": {f"task {number}": record for number in range(10_001)}}))
    with pytest.raises(ValueError, match="it has 10,001 tasks"):
        Model(copy.path)
    path.write_text(json.dumps({**manifest, "more": [[]] * 2_200_000}))
    with pytest.raises(ValueError, match="more than 4,194,304 values"):
        Model(copy.path)


def test_a_head_or_statistics_smaller_than_a_record_says_are_one_line(copy: Model) -> None:
    path = copy.path / "manifest.json"
    manifest = json.loads(path.read_text())
    record = json.loads((copy.store.objects / manifest["tasks"]["01"]).read_text())

    def change(**changed: Any) -> None:
        tasks = {**manifest["tasks"], "01": copy.store.put_json({**record, **changed})}
        path.write_text(json.dumps({**manifest, "tasks": tasks}))

    change(classes=[str(number) for number in range(10**5)], columns=[0] * 10**5)
    with pytest.raises(ValueError, match="does not fit the model: run hashroute verify"):
        Model(copy.path).predict(some_digits(0)[0], "01")
    statistics = copy.store.tensors(record["objects"]["statistics"])
    for wrong in ({"counts": torch.full((2,), -1)}, {"counts": torch.ones(10**6).long()}, {"means": torch.zeros(2, 1)}):
        name = copy.store.put_tensors({**statistics, **wrong})
        change(objects={**record["objects"], "statistics": name})
        with pytest.raises(ValueError, match="of the statistics of features"):
            Model(copy.path).learn(some_digits(0, 1, skip=60), "01", epochs=1)


def test_what_a_watcher_raises_in_a_continued_lesson_is_not_about_its_checkpoint(
    interrupted: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(interrupted, tmp_path / "model")

    def fail(progress: Progress) -> None:
        raise RuntimeError(f"at {progress.epoch}")

    with pytest.raises(RuntimeError, match="at 1"):
        Model(folder).learn(some_digits(4, 5), "45", epochs=2, progress=fail)
    assert Model(folder).learn(some_digits(4, 5), "45", epochs=2).resumed_at == 1


# -------------------------------------------------------------------- import, notebook


def test_a_saved_learner_is_imported_with_its_answers(tmp_path: Path) -> None:
    learner = learned("hrn")
    learner.save(tmp_path / "saved")
    model = Model(tmp_path / "model")
    model.learn(tmp_path / "saved")
    for task in digits().tasks:
        assert torch.equal(
            model.learner().logits(task.test.images, task.name), learner.logits(task.test.images, task.name)
        )
    found = learner.predict(digits().tasks[1].test.images)
    answers = model.predict(digits().tasks[1].test.images)
    assert [answer.task for answer in answers] == [learner.tasks[index].name for index in found.tasks.tolist()]
    model.learn(some_digits(8, 9), "8 or 9 again", epochs=1)
    assert model.verify() == []


@pytest.mark.parametrize("kind", ["hrn", "hrn-rank"])
def test_models_of_format_3_are_imported(kind: str, tmp_path: Path) -> None:
    folder = Path(__file__).parents[1] / "fixtures" / "format3" / kind
    model = Model(tmp_path / "model")
    model.learn(folder)
    learner = hashroute.load_learner(folder)
    images = digits().tasks[0].test.images[:20]
    for task in learner.tasks:
        assert torch.allclose(model.learner().logits(images, task.name), learner.logits(images, task.name), atol=1e-5)


def test_other_learners_are_not_imported(tmp_path: Path) -> None:
    learned("vc").save(tmp_path / "saved")
    with pytest.raises(ValueError, match="only hrn can be imported"):
        Model(tmp_path / "model").learn(tmp_path / "saved")


def test_a_notebook_shows_the_tasks(copy: Model) -> None:
    copy.rename("01", "<b>bold</b>")
    assert "&lt;b&gt;bold" in copy._repr_html_()
    assert "<b>" not in copy._repr_html_()
    assert repr(copy).count("\n") == 0
    assert "3 tasks" in repr(copy)


# -------------------------------------------------------------------- sources


def as_files(folder: Path, data: Arrays) -> Path:
    for place, (image, label) in enumerate(zip(*data, strict=True)):
        file = folder / str(label) / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 255).round().astype(np.uint8)).save(file)
    return folder


def csv_list(folder: Path, data: Arrays) -> Path:
    files = as_files(folder / "files", data)
    lines = [f"{file.relative_to(folder)},{file.parent.name}" for file in sorted(files.rglob("*.png"))]
    (folder / "01.csv").write_text("\n".join(["path,label", *lines]))
    return folder / "01.csv"


def json_list(folder: Path, data: Arrays) -> Path:
    files = as_files(folder / "files", data)
    lines = [json.dumps({"label": file.parent.name, "path": str(file)}) for file in sorted(files.rglob("*.png"))]
    (folder / "01.jsonl").write_text("\n".join(lines))
    return folder / "01.jsonl"


class Pairs(torch.utils.data.Dataset[Any]):
    """A Dataset of Pillow images with text labels."""

    def __init__(self, data: Arrays, as_dict: bool = False) -> None:
        self.data, self.as_dict = data, as_dict

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, row: int) -> Any:
        image = Image.fromarray((self.data[0][row] * 255).round().astype(np.uint8))
        label = str(self.data[1][row])
        return {"image": image, "label": label} if self.as_dict else (image, label)


SOURCES: dict[str, Callable[[Path, Arrays], Any]] = {
    "folder": as_files,
    "CSV": csv_list,
    "JSON lines": json_list,
    "(n, h, w)": lambda _, data: data,
    "channels first": lambda _, data: (torch.from_numpy(data[0])[:, None], torch.from_numpy(data[1])),
    "channels last": lambda _, data: (np.repeat(data[0][..., None], 3, 3), data[1]),
    "uint8": lambda _, data: ((data[0] * 255).round().astype(np.uint8), data[1].astype(np.uint8)),
    "labels as bytes": lambda _, data: (data[0], [str(label).encode() for label in data[1]]),
    "text labels": lambda _, data: (data[0], [str(label) for label in data[1]]),
    "Dataset": lambda _, data: Pairs(data),
    "DataLoader": lambda _, data: torch.utils.data.DataLoader(Pairs(data), batch_size=4),
    "dicts": lambda _, data: Pairs(data, as_dict=True),
    "columns": lambda _, data: {"image": data[0], "label": data[1]},
    "TensorDataset": lambda _, data: torch.utils.data.TensorDataset(
        torch.from_numpy(data[0])[:, None], torch.from_numpy(data[1])
    ),
    "labels as one column of floats": lambda _, data: (data[0], data[1].astype(np.float64)),
    "colour and alpha": lambda _, data: (np.stack([*[data[0]] * 3, np.ones_like(data[0])], 3), data[1]),
    "list of pairs": lambda _, data: [(image[None], int(label)) for image, label in zip(*data, strict=True)],
}


@pytest.mark.parametrize("kind", SOURCES)
def test_sources_of_every_kind_give_the_same_classes(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path / "01", some_digits(0, 1))
    report = Model(tmp_path / "model").learn(source, "01", epochs=2)
    assert report.classes == ("0", "1")
    assert report.images + report.held_out == 120
    assert right(Model(tmp_path / "model"), some_digits(0, 1, skip=60), "01") > 0.9


def test_a_task_is_a_source(tmp_path: Path) -> None:
    images, labels = some_digits(0, 1)
    task = Task.from_data("pair", (images[:, None], labels), (images[:, None], labels), class_names=["zero", "one"])
    report = Model(tmp_path).learn(task, epochs=1)
    assert (report.task, report.classes) == ("pair", ("zero", "one"))
    assert report.images == len(task.train)


def test_items_of_three_are_several_tasks(tmp_path: Path) -> None:
    images, labels = some_digits(0, 1, 2, 3)
    model = Model(tmp_path)
    model.learn((images, labels, np.where(labels < 2, "low", "high")), epochs=1)
    assert [(each.name, each.classes) for each in model.tasks()] == [("low", ("0", "1")), ("high", ("2", "3"))]


class HuggingFace(Pairs):
    """Rows as dicts of a Pillow image and a number, and features that know the names of classes."""

    class ClassLabel:
        names = ("zero", "one", "two", "three")

    def __init__(self, data: Arrays) -> None:
        super().__init__(data, as_dict=True)
        self.features = {"image": None, "label": self.ClassLabel()}


def test_numbers_get_the_names_that_a_dataset_knows(tmp_path: Path) -> None:
    report = Model(tmp_path).learn(HuggingFace(some_digits(1, 3)), "odd", epochs=1)
    assert report.classes == ("one", "three")


def test_folders_are_searched_and_what_is_no_image_is_listed(tmp_path: Path) -> None:
    folder = as_files(tmp_path / "pairs", some_digits(0, 1))
    deeper = folder / "0" / "more" / "inside"
    deeper.mkdir(parents=True)
    (folder / "0" / "0.png").rename(deeper / "0.png")
    (folder / "1" / "broken.jpg").write_bytes(b"not an image")
    (folder / "1" / "notes.txt").write_text("notes")
    (folder / "__MACOSX").mkdir()
    (folder / "empty").mkdir()
    (folder / ".hidden").mkdir()
    report = Model(tmp_path / "model").learn(folder, epochs=1)
    assert report.task == "pairs"
    assert report.classes == ("0", "1")
    assert report.images + report.held_out == 120
    assert report.unreadable == 2
    assert report.unreadable_list is not None
    listed = report.unreadable_list.read_text().splitlines()
    assert ["broken.jpg" in listed[0], "notes.txt" in listed[1]] == [True, True]
    assert ["'empty'" in report.notes[0], "'__MACOSX'" in report.notes[1]] == [True, True]


def test_a_later_task_may_have_one_class_and_labels_need_not_start_at_0(copy: Model) -> None:
    assert copy.learn(some_digits(9), "nine", epochs=2).classes == ("9",)
    assert copy.learn(some_digits(6, 8), "even", epochs=2).classes == ("6", "8")
    names = {each.class_name for each in copy.predict(some_digits(9)[0][:1], top=99)[0].top}
    assert names == set("012345689"), "no class that nobody named"


def test_photographs_are_mirrored_and_shifted_and_signs_are_not_mirrored() -> None:
    random = np.random.default_rng(0)
    colour = random.integers(0, 255, (20, 32, 32, 3), dtype=np.uint8)
    kinds = {"photographs": colour, "signs": colour[..., :1], "small": colour[:, :16, :16]}
    found = {}
    for kind, images in kinds.items():
        (source,) = open_sources((images, [0, 1] * 10), kind)
        found[kind] = source.task(kind, (3, *images.shape[1:3]))[0].augmentations
    assert found == {"photographs": {"flip", "shift"}, "signs": {"shift"}, "small": {"flip"}}


def test_held_out_images_of_a_list_or_a_folder_are_not_trained_on(tmp_path: Path) -> None:
    as_files(tmp_path / "data" / "train", some_digits(0, 1))
    as_files(tmp_path / "data" / "test", some_digits(0, 1, skip=60))
    report = Model(tmp_path / "model").learn(tmp_path / "data", epochs=1)
    assert (report.images, report.held_out) == (120, 120)


def test_images_of_any_kind_are_read(tmp_path: Path) -> None:
    model = teach(tmp_path / "model", "01")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 30, 3), dtype=np.uint8))
    picture.save(tmp_path / "a.jpg")
    picture.convert("L").save(tmp_path / "b.png")
    picture.convert("RGBA").save(tmp_path / "c.png")
    picture.convert("P").save(tmp_path / "d.gif")
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(tmp_path / "e.png")
    files = sorted(tmp_path.glob("?.*"))
    assert len(model.predict(files)) == 5
    assert len(model.predict([str(files[0])])) == 1
    assert len(model.predict(files[0])) == 1
    assert len(model.predict(picture)) == 1
    assert len(model.predict(np.asarray(picture)[None])) == 1
    assert model.predict(np.zeros((2, 8, 8))) == model.predict(torch.zeros(2, 1, 8, 8))


def test_one_image_or_images_of_several_sizes_are_answered(copy: Model) -> None:
    grey = some_digits(3)[0][0]
    colour = np.repeat(grey[..., None], 3, 2)
    (expected,) = copy.predict(grey[None], top=3)
    for one in (grey, torch.from_numpy(grey)[None], colour, colour.transpose(2, 0, 1)):
        assert copy.predict(one, top=3) == [expected]
    large = np.kron(grey, np.ones((4, 4)))
    found = copy.predict([grey, large, colour, Image.fromarray((grey * 255).round().astype(np.uint8))], top=3)
    assert [found[place] for place in (0, 2, 3)] == [expected] * 3
    assert found[1] == copy.predict(large[None], top=3)[0]
    assert copy.predict(grey, task=1)[0].task == "23", "tasks have numbers, too"


# -------------------------------------------------------------------- wrong input


WRONG: dict[str, tuple[Callable[[Model, Path], Any], str]] = {
    "no such path": (lambda model, path: model.learn(path / "none"), "does not exist"),
    "a file that is no list": (lambda model, path: model.learn(__file__), "is not a source"),
    "an empty folder": (lambda model, path: model.learn(_made(path / "empty")), "has no class folder"),
    "images without class folders": (lambda model, path: model.learn(_loose(path)), "1 files and no class folder"),
    "an empty list": (lambda model, path: model.learn(_text(path / "l.csv", "")), "lists no files"),
    "a list without labels": (
        lambda model, path: model.learn(_text(path / "l.csv", "path,x\na.png,1")),
        "expected one of label",
    ),
    "a list with a hole": (lambda model, path: model.learn(_text(path / "l.csv", "path,label\na.png,")), "entry 1"),
    "an unknown split": (
        lambda model, path: model.learn(_text(path / "l.csv", "path,label,split\na,b,c")),
        "split 'c'",
    ),
    "bad JSON": (lambda model, path: model.learn(_text(path / "l.jsonl", "{")), "line 1"),
    "binary for text": (lambda model, path: model.learn(_bytes(path / "l.csv")), "not text"),
    "arrays without a name": (lambda model, path: model.learn(some_digits(6, 7)), "has no name"),
    "a number": (lambda model, path: model.learn(3, "x"), "is a int"),
    "None": (lambda model, path: model.learn(None, "x"), "NoneType"),
    "images alone": (lambda model, path: model.learn(some_digits(0)[0], "x"), "ndarray"),
    "too few labels": (lambda model, path: model.learn((np.zeros((3, 8, 8)), [0, 1]), "x"), "one for each of 3"),
    "labels between": (lambda model, path: model.learn((np.zeros((2, 8, 8)), [0.5, 1]), "x"), "whole numbers"),
    "pixels out of range": (lambda model, path: model.learn((np.full((4, 8, 8), 7.0), [0, 0, 1, 1]), "x"), "0 to 1"),
    "NaN pixels": (lambda model, path: model.learn((np.full((4, 8, 8), np.nan), [0, 0, 1, 1]), "x"), "0 to 1"),
    "five dimensions": (lambda model, path: model.learn((np.zeros((4, 1, 1, 8, 8)), [0, 0, 1, 1]), "x"), "expected"),
    "two ways to read": (lambda model, path: model.learn((np.zeros((4, 3, 8, 3)), [0, 0, 1, 1]), "x"), "two ways"),
    "one image of a class": (lambda model, path: model.learn((np.zeros((3, 8, 8)), [0, 0, 1]), "x"), "one readable"),
    "no readable image": (lambda model, path: model.learn(_unreadable(path)), "no readable image"),
    "other channels": (lambda model, path: model.learn((np.zeros((4, 7, 8, 8)), [0, 0, 1, 1]), "x"), "7 channels"),
    "batches": (
        lambda model, path: model.learn([(torch.zeros(4, 1, 8, 8), torch.zeros(4))] * 2, "x"),
        r"item 0 of the list cannot be read .*a label has the shape \(4,\)",
    ),
    "a missing label": (lambda model, path: model.learn((np.zeros((2, 8, 8)), ["a", None]), "x"), "label is missing"),
    "a dict without labels": (lambda model, path: model.learn({"image": np.zeros((2, 8, 8))}, "x"), "keys image: exp"),
    "a dict of splits": (lambda model, path: model.learn({"train": [], "test": []}, "x"), r"as in data\['train'\]"),
    "epochs as text": (lambda model, path: model.learn(some_digits(6, 7), "x", epochs="3"), "epochs is '3'"),
    "a number as name": (lambda model, path: model.learn(some_digits(6, 7), 7), "has the name 7"),
    "half an answer": (lambda model, path: model.predict(np.zeros((1, 8, 8)), top=1.5), "top is 1.5"),
    "a size as text": (lambda model, path: Model(path, size="32"), "size is '32': expected 8 to 1024 pixels"),
    "a seed as text": (lambda model, path: Model(path, seed="a"), "seed is 'a': expected a whole number"),
    "a backbone that is no name": (lambda model, path: Model(path, backbone=3), "backbone is 3: expected a name"),
    "a device that is not there": (lambda model, path: Model(path, device="gpu"), "device 'gpu' is not available"),
    "no epochs": (lambda model, path: model.learn(some_digits(6, 7), "x", epochs=0), "at least 1"),
    "private after public": (lambda model, path: model.learn(some_digits(6), "01", private=True), "not private"),
    "an empty name": (lambda model, path: model.learn(some_digits(6, 7), ""), "has no name"),
    "a name with a line end": (lambda model, path: model.learn(some_digits(6, 7), "a\nb"), "give it one"),
    "an unknown task": (
        lambda model, path: model.predict(np.zeros((1, 8, 8)), "birds"),
        "expected one of '01', '23', '45'",
    ),
    "nothing to predict": (lambda model, path: model.predict([]), "no images"),
    "a list of numbers to predict": (lambda model, path: model.predict([1, 2]), r"an image has the shape \(\)"),
    "a dict to predict": (lambda model, path: model.predict({"a": 1}), "images are a dict"),
    "a number to predict": (lambda model, path: model.predict(3), "expected paths"),
    "a missing file": (lambda model, path: model.predict(path / "none.png"), "cannot be read"),
    "no answers": (lambda model, path: model.predict(np.zeros((1, 8, 8)), top=0), "at least 1"),
    "forget an unknown task": (lambda model, path: model.forget("birds"), "expected 01, 23, 45"),
    "rename an unknown task": (lambda model, path: model.rename("birds", "x"), "expected 01, 23, 45"),
    "rename to a name in use": (lambda model, path: model.rename("01", "23"), "already"),
    "another size": (lambda model, path: Model(model.path, size=32), "8 pixels"),
    "another backbone": (lambda model, path: Model(model.path, backbone="resnet18"), "backbone 'small'"),
    "a huge size": (lambda model, path: Model(path / "new", size=10**6), "8 to 1024"),
    "one class at first": (lambda model, path: Model(path / "new").learn(some_digits(1), "x"), "one class"),
    "private at first": (lambda model, path: Model(path / "new").learn(some_digits(1, 2), "x", private=True), "size"),
    "nothing learned": (lambda model, path: Model(path / "new").predict(np.zeros((1, 8, 8))), "learned no task"),
    "a model in a file": (lambda model, path: Model(__file__), "is not a model"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_changes_nothing(case: str, three: Path, tmp_path: Path) -> None:
    before = content(three)
    do, told = WRONG[case]
    with pytest.raises(ValueError, match=told) as error:
        do(Model(three), tmp_path)
    assert "\n" not in str(error.value)
    assert content(three) == before


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _loose(folder: Path) -> Path:
    Image.new("L", (8, 8)).save(folder / "a.png")
    return folder


def _text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _bytes(path: Path) -> Path:
    path.write_bytes(bytes([255, 254, 0, 200]) * 9)
    return path


def _unreadable(folder: Path) -> Path:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "x.png").write_bytes(b"nothing")
    return folder


def test_a_folder_without_write_permission_is_an_error_of_the_system(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    tmp_path.chmod(0o555)
    with pytest.raises(PermissionError):
        teach(tmp_path / "model", "01")
