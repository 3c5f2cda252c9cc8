"""Estimators for scikit-learn: a classifier and a transformer that learn images, one episode after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor
from typing_extensions import Self

from hashroute.devices import find_device
from hashroute.learners import create_learner
from hashroute.learners.inputs import check_image_shape
from hashroute.learners.learner import Learner
from hashroute.tasks import Split, Task

CHANNELS = (1, 3, 4)
"""A last dimension of one of these sizes holds channels."""

SMALLEST = 4
"""Height and width of the smallest images."""


class _HashRouted(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: parameters, images and episodes."""

    learner_: Learner
    classes_: NDArray[Any]
    episodes_: list[NDArray[Any]]
    """The classes of each episode."""
    n_features_in_: int

    def __init__(
        self,
        learner: str = "hrn",
        *,
        image_shape: Sequence[int] | None = None,
        epochs: int = 10,
        batch_size: int = 32,
        learning_rate: float | None = None,
        backbone: Any = None,
        options: dict[str, Any] | None = None,
        random_state: Any = None,
        device: str = "cpu",
        verbose: int = 0,
    ) -> None:
        self.learner = learner
        self.image_shape = image_shape
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.backbone = backbone
        self.options = options
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything, then learn one episode.

        Args:
            X: images: (n, channels, height, width), (n, height, width, channels), or rows.
            y: (n,) the class of each image.
        """
        return self._learn(X, y, None, start=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn one more episode.

        Args:
            X: images, as in `fit`.
            y: (n,) the class of each image; new classes may appear at any time.
            classes: classes that are known to come; not needed.
        """
        return self._learn(X, y, classes, start=not hasattr(self, "learner_"))

    def _learn(self, X: Any, y: Any, classes: Any, start: bool) -> Self:
        given = self._rows(X, start)
        rows, y = validate_data(self, given, y, reset=start, dtype=None if _is_uint8(given) else "numeric")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if start:
            self._find_images(X, rows)
        learner = self._new_learner() if start else self.learner_
        labels, places = np.unique(y, return_inverse=True)
        episodes: list[NDArray[Any]] = [] if start else self.episodes_
        data = Split(self._images(rows), torch.from_numpy(places).long())
        task = Task.without_test(f"episode {len(episodes) + 1}", data, [str(label) for label in labels])
        try:
            learner.learn(task, progress=bool(self.verbose))
        except BaseException:
            if learner.training_state is not None:  # the next call begins a new episode
                learner.abort()
            raise
        self.learner_, self.episodes_ = learner, [*episodes, labels]
        known = [] if start else [self.classes_]
        more = [] if classes is None else [np.asarray(classes)]
        self.classes_ = np.unique(np.concatenate([*known, *more, labels]))
        return self

    def _new_learner(self) -> Learner:
        settings = {"epochs": self.epochs, "batch_size": self.batch_size, **(self.options or {})}
        if self.learning_rate is not None:
            settings["learning_rate"] = self.learning_rate
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        learner = create_learner(self.learner, self.image_shape_, seed=seed, backbone=self.backbone, **settings)
        return learner.to(find_device(self.device))

    # ---------------------------------------------------------------- images

    def _rows(self, X: Any, start: bool) -> Any:
        """Images as rows, channels first; rows as they are."""
        shape = tuple(getattr(X, "shape", ()))
        if len(shape) < 3:
            return X
        images = X.numpy(force=True) if isinstance(X, Tensor) else np.asarray(X)
        expected = self.image_shape if start else self.image_shape_
        wanted = None if expected is None else check_image_shape(expected)
        if len(shape) == 4 and _channels_last(shape[1:], wanted):
            images = np.moveaxis(images, -1, 1)
        if images.ndim != 4 or (wanted is not None and images.shape[1:] != wanted):
            sides = "channels, height, width" if wanted is None else ", ".join(map(str, wanted))
            hint = ": add the channel, as in X[:, None]" if len(shape) == 3 else ""
            raise ValueError(f"X has the shape {shape}, expected (number, {sides}){hint}")
        return images.reshape(len(images), math.prod(images.shape[1:]))

    def _find_images(self, X: Any, rows: NDArray[Any]) -> None:
        """Find out the shape of images and the range of pixels, from the first images."""
        pixels = rows.shape[1]
        shape = tuple(getattr(X, "shape", ()))
        if self.image_shape is not None:
            self.image_shape_ = check_image_shape(self.image_shape)
            if math.prod(self.image_shape_) != pixels:
                expected = math.prod(self.image_shape_)
                raise ValueError(
                    f"X has {pixels} features, image_shape {self.image_shape_} needs {expected}: change one of the two"
                )
        elif len(shape) == 4:
            last = _channels_last(shape[1:], None)
            self.image_shape_ = (shape[3], *shape[1:3]) if last else shape[1:]
        else:
            side = max(SMALLEST, math.isqrt(pixels - 1) + 1)
            self.image_shape_ = (1, side, side)
        low, high = (0, 255) if _is_uint8(rows) else (float(rows.min()), float(rows.max()))
        self.pixel_range_ = (low, high if high > low else low + 1)

    def _images(self, rows: NDArray[Any]) -> Tensor:
        """(n, channels, height, width) of uint8. Rows that are too short for an image end with zeros."""
        low, high = self.pixel_range_
        share = (rows.astype(np.float64) - low) / (high - low)
        pixels = np.zeros((len(rows), math.prod(self.image_shape_)), dtype=np.uint8)
        pixels[:, : rows.shape[1]] = (share.clip(0, 1) * 255).round()
        return torch.from_numpy(pixels.reshape(-1, *self.image_shape_))

    def _asked(self, X: Any) -> Tensor:
        check_is_fitted(self, "learner_")
        given = self._rows(X, start=False)
        return self._images(validate_data(self, given, reset=False))


class HashRoutedClassifier(ClassifierMixin, _HashRouted):  # type: ignore[misc]
    """A classifier of images that learns one episode after another and keeps no images.

    Each call of `partial_fit` is an episode. `predict` is not told the episode.

    Args:
        learner: the name of a registered learner.
        image_shape: channels, height and width, if X has rows. Without it, a row becomes the smallest square image
            that holds it, of at least 4 x 4 pixels, filled with zeros.
        epochs: passes over the images of an episode.
        batch_size: images per step.
        learning_rate: the highest one; None for that of the default recipe.
        backbone: a registered name, unit specs, or a module; None chooses by the size of the images.
        options: of the learner, and fields of the recipe.
        random_state: a whole number gives the same model each time.
        device: "cpu", "auto", or any that torch knows.
        verbose: 1 shows a progress bar.

    Pixels of uint8 range from 0 to 255. Others are scaled by the lowest and highest value of the first episode, and
    values outside are cut off.
    """

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """(n, classes) the share of each class of `classes_`; a class that never came has 0."""
        images = self._asked(X)
        scores = self.learner_(images).double().numpy(force=True)
        best = np.full((len(scores), len(self.classes_)), -np.inf)
        columns = np.searchsorted(self.classes_, np.concatenate(self.episodes_))
        np.maximum.at(best.T, columns, scores.T)
        shares = np.exp(best - best.max(1, keepdims=True))
        probabilities: NDArray[np.float64] = shares / shares.sum(1, keepdims=True)
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """(n,) the class of each image."""
        best = self.predict_proba(X).argmax(1)
        answers: NDArray[Any] = self.classes_[best]
        return answers


class HashRoutedFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _HashRouted):  # type: ignore[misc]
    """The features that a learner computes from images, for another estimator.

    Parameters and episodes are those of `HashRoutedClassifier`. Each image gets the features of the episode that the
    learner assigns it to.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # features are always float32
        return tags

    def transform(self, X: Any) -> NDArray[np.float32]:
        """(n, features) the features of images."""
        images = self._asked(X)
        features: NDArray[np.float32] = self.learner_.encode(images).numpy(force=True)
        return features

    @property
    def _n_features_out(self) -> int:
        return self.learner_.feature_count()


def _is_uint8(X: Any) -> bool:
    return getattr(X, "dtype", None) == np.uint8


def _channels_last(shape: Sequence[int], wanted: tuple[int, ...] | None) -> bool:
    """Whether an image of this shape has its channels last."""
    if wanted is not None:
        return tuple(shape) != wanted and (shape[2], *shape[:2]) == wanted
    return shape[2] in CHANNELS and shape[0] not in CHANNELS
