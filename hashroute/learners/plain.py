"""vc and joint: a plain convolutional encoder that learns tasks one after the other, or all at once."""

from __future__ import annotations

from hashroute.learners.learner import Learner, Style
from hashroute.learners.registry import register_learner
from hashroute.nn.backbones import PlainEncoder


@register_learner("vc")
class Vanilla(Learner):
    """A plain network that learns each task as if there were no other, and so forgets."""

    style = Style("#8a8a8a", "-", "v")

    def new_encoder(self) -> PlainEncoder:
        return PlainEncoder(self.backbone.new_levels(), self.recipe.pool)


@register_learner("joint")
class Joint(Vanilla):
    """The plain network, given all tasks at once. It is a reference, not a continual learner."""

    style = Style("#1c1c21", "--", "h")
    at_once = True
