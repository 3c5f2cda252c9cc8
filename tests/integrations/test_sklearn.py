"""The estimators follow scikit-learn, and learn episode after episode."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from hashroute.integrations.sklearn import HashRoutedClassifier, HashRoutedFeatures
from support import assert_one_clear_line

X, Y = load_digits(return_X_y=True)
FEW = slice(0, 300)
QUICK: dict[str, Any] = {"epochs": 2, "options": {"fixed_features": 64}, "random_state": 0}
SQUARE: dict[str, Any] = {**QUICK, "image_shape": (1, 8, 8)}

EXPECTED = {"check_classifiers_train": "asks for 83 % of three classes of points; two numbers are no image"}


@parametrize_with_checks(
    [HashRoutedClassifier(**QUICK), HashRoutedFeatures(**QUICK)],
    expected_failed_checks=lambda estimator: EXPECTED if hasattr(estimator, "predict") else {},
)
def test_estimator_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def taught() -> HashRoutedClassifier:
    """A classifier after two episodes, of low and of high digits."""
    model = HashRoutedClassifier(**SQUARE)
    for part in (Y[FEW] < 5, Y[FEW] >= 5):
        model.partial_fit(X[FEW][part], Y[FEW][part])
    return model


def test_classes_may_come_later_and_old_ones_stay() -> None:
    model = taught()
    assert model.classes_.tolist() == list(range(10))
    assert len(model.learner_.tasks) == 2
    assert model.score(X[300:600], Y[300:600]) > 0.6
    assert set(model.predict(X[300:600])) >= {0, 9}


def test_predict_is_the_task_free_answer_of_the_learner() -> None:
    model = taught()
    answers = model.learner_.predict(model._images(X[300:400]))
    expected = [model.episodes_[task][label] for task, label in zip(*answers, strict=True)]
    assert model.predict(X[300:400]).tolist() == expected


def test_fit_starts_from_nothing() -> None:
    model = taught().fit(X[FEW][Y[FEW] < 2], Y[FEW][Y[FEW] < 2])
    assert model.classes_.tolist() == [0, 1]
    assert len(model.learner_.tasks) == 1


def test_classes_that_never_came_have_no_probability() -> None:
    two = Y[FEW] < 2
    model = HashRoutedClassifier(**SQUARE).partial_fit(X[FEW][two], Y[FEW][two], classes=[0, 1, 7])
    shares = model.predict_proba(X[:20])
    assert shares.shape == (20, 3)
    assert (shares[:, 2] == 0).all()


def test_an_episode_may_have_one_image() -> None:
    model = taught().partial_fit(X[400:401], Y[400:401])
    assert len(model.learner_.tasks) == 3
    assert model.predict(X[:3]).shape == (3,)


def test_all_layouts_of_images_give_the_same_answers() -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(0, 256, (40, 3, 8, 9), dtype=np.uint8)
    labels = np.arange(40) % 2
    last = np.moveaxis(first, 1, -1)
    expected = HashRoutedClassifier(**QUICK).fit(first, labels).predict_proba(first)
    for images, shape in ((last, None), (last, (3, 8, 9)), (first.reshape(40, -1), (3, 8, 9))):
        model = HashRoutedClassifier(**QUICK, image_shape=shape).fit(images, labels)
        assert (model.predict_proba(images) == expected).all()
        assert model.n_features_in_ == 3 * 8 * 9


def test_wrong_shapes_are_one_clear_line() -> None:
    images, model = X[FEW].reshape(-1, 8, 8), HashRoutedClassifier(**QUICK)
    assert_one_clear_line(lambda: model.fit(images, Y[FEW]), "add the channel")
    assert_one_clear_line(lambda: HashRoutedClassifier(image_shape=(1, 8, 9)).fit(X, Y), "64 features.* needs 72")
    assert_one_clear_line(lambda: HashRoutedClassifier(image_shape=(8, 8)).fit(X, Y), "image_shape is")
    assert_one_clear_line(lambda: taught().predict(np.zeros((2, 1, 9, 9))), r"expected \(number, 1, 8, 8\)")


def test_a_model_is_pickled_and_dumped(tmp_path: Path) -> None:
    model = taught()
    joblib.dump(model, tmp_path / "model")
    for other in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model")):
        assert (other.predict_proba(X[:50]) == model.predict_proba(X[:50])).all()
        other.partial_fit(X[:40], Y[:40])
        assert len(other.learner_.tasks) == 3


def test_a_clone_learns_the_same() -> None:
    model = HashRoutedClassifier(**SQUARE).fit(X[FEW], Y[FEW])
    other = clone(model).fit(X[FEW], Y[FEW])
    assert (other.predict_proba(X[:50]) == model.predict_proba(X[:50])).all()


def test_search_validation_and_pipelines() -> None:
    search = GridSearchCV(HashRoutedClassifier(**SQUARE), {"epochs": [1, 2]}, cv=2).fit(X[FEW], Y[FEW])
    assert search.best_params_["epochs"] in (1, 2)
    pipeline = make_pipeline(MinMaxScaler(), HashRoutedClassifier(**SQUARE))
    assert cross_val_score(pipeline, X[FEW], Y[FEW], cv=2).min() > 0.5


def test_features_serve_another_estimator() -> None:
    pipeline = make_pipeline(HashRoutedFeatures(**SQUARE), LogisticRegression(max_iter=500)).fit(X[FEW], Y[FEW])
    assert pipeline.score(X[300:600], Y[300:600]) > 0.7
    names = pipeline[:-1].get_feature_names_out()
    assert len(names) == pipeline[:-1].transform(X[:2]).shape[1]
