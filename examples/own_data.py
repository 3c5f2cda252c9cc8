"""Learn your own images: files in folders, then a Dataset.

    python examples/own_data.py

The images are drawn here. Replace the folder by yours, with one folder per task and one folder per class inside it:
images/TASK/CLASS/*.jpg. Images that do not fit in memory are read while training.
"""

import random
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw
from torch.utils.data import Dataset

from hashroute import Task, create_learner, load_scenario
from hashroute.data.photos import Photos

TASKS = {"round": ("disc", "ring"), "straight": ("beam", "pole")}


def draw(kind: str) -> Image.Image:
    """A picture of one class, in a random place."""
    image = Image.new("RGB", (48, 48), "white")
    x, y = random.randrange(4, 16), random.randrange(4, 16)
    pencil = ImageDraw.Draw(image)
    if kind in TASKS["round"]:
        pencil.ellipse((x, y, x + 28, y + 28), fill="navy" if kind == "disc" else None, outline="navy", width=5)
    else:
        pencil.line((x, 24, x + 28, 24) if kind == "beam" else (24, y, 24, y + 28), fill="navy", width=5)
    return image


class Corners(Dataset):
    """A Dataset of your own has `len` and gives (image, label). Images may be Pillow images, arrays or tensors."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        image, label = Image.new("RGB", (16, 16), "white"), row % 2
        image.paste("navy", (10 * label, 10 * label, 10 * label + 6, 10 * label + 6))
        return image, label


def main() -> None:
    random.seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for task, classes in TASKS.items():
            for kind in classes:
                (folder / task / kind).mkdir(parents=True)
                for index in range(60):
                    draw(kind).save(folder / task / kind / f"{index}.jpg")

        scenario = load_scenario("folders", folder=folder, size=16)
        tasks = [
            *scenario.tasks,
            Task.from_data("corners", Corners(), Corners(), class_names=["upper left", "lower right"]),
        ]
        learner = create_learner("hrn", scenario.image_shape, epochs=5)
        for task in tasks:
            learner.learn(task)

        for task in tasks:
            right = learner.predict(task.test.images, task.name) == task.test.labels
            print(f"{task.name}: {right.float().mean():.0%} of {len(right)} test images are right")
        photos = Photos([folder / "round" / "ring" / "0.jpg"], size=16)
        label = int(learner.predict(photos, "round"))
        print(f"round/ring/0.jpg is a {tasks[0].class_names[label]}")


if __name__ == "__main__":
    main()
