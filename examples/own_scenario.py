"""Register a scenario, and compare two learners on it.

    python examples/own_scenario.py

Put the decorated function into a module of your own, and the commands find it, too:
hashroute bench rotated-digits --plugins my_module
"""

import torch

from hashroute import Scenario, Task, load_scenario, register_scenario, run


@register_scenario("rotated-digits", epochs=(3,))
def rotated_digits(turns: int = 3) -> Scenario:
    """Handwritten digits 0 to 4: upright, then on the left side, then upside down."""
    digits = load_scenario("digits").tasks[:3]
    images = torch.cat([task.train.images for task in digits])
    labels = torch.cat([task.train.labels + 2 * index for index, task in enumerate(digits)])
    images, labels = images[labels < 5], labels[labels < 5]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:100], order[100:]
    tasks = []
    for turn in range(turns):
        turned = images.rot90(turn, (2, 3))
        tasks.append(
            Task.from_data(
                f"turned by {90 * turn} degrees",
                (turned[train], labels[train]),
                (turned[test], labels[test]),
                class_names=[f"{digit} at {90 * turn}" for digit in range(5)],
            )
        )
    return Scenario("rotated-digits", tasks)


def main() -> None:
    scenario = load_scenario("rotated-digits", turns=3)
    print(scenario)
    for name in ("vc", "hrn"):
        result, _ = run(scenario, name, seed=0)
        after_last_task = ", ".join(f"{accuracy:.0f} %" for accuracy in result.accuracy[-1])
        print(f"{name}: accuracy on each task after the last one: {after_last_task}")


if __name__ == "__main__":
    main()
