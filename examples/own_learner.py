"""A learner of your own: train the encoder on the first task only, and compare it with a plain network.

A learner overrides some hooks of an existing one. Registered by name, it also works on the command line:
`hashroute bench digits --plugins own_learner --learners frozen vc` in the folder of this file.
"""

from __future__ import annotations

from hashroute import load_scenario, register_learner, run
from hashroute.learners.plain import Vanilla


@register_learner("frozen")
class Frozen(Vanilla):
    """A plain network whose encoder is frozen after the first task."""

    def before_step(self) -> None:
        """Drop the gradients of the encoder."""
        if len(self.tasks) > 1:
            for weight in self.encoder.parameters():
                weight.grad = None


if __name__ == "__main__":
    digits = load_scenario("digits")
    for learner in ("frozen", "vc"):
        result, _ = run(digits, learner)
        final = [f"{accuracy:.1f}" for accuracy in result.accuracy[-1]]
        print(f"{learner}: accuracy of each task after the last one, in percent: {', '.join(final)}")
