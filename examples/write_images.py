"""Write folders of images to try `hashroute learn` with: one folder for each task, and one for each class inside.

    python examples/write_images.py [FOLDER]

photos: pieces of two photographs. letters: drawn with a font. digits: handwritten. Two more are for later: more-digits
is another class of digits, and secret has two letters that will be forgotten.
"""

import random
import sys
from collections.abc import Iterable
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits, load_sample_image

COUNT = 40


def pieces(photograph: str) -> Iterable[Image.Image]:
    """Random pieces of a photograph."""
    whole = Image.fromarray(load_sample_image(photograph))
    for _ in range(COUNT):
        x, y = random.randrange(whole.width - 160), random.randrange(whole.height - 160)
        yield whole.crop((x, y, x + 160, y + 160)).resize((32, 32))


def drawn(letter: str) -> Iterable[Image.Image]:
    """A letter in random places, sizes and directions."""
    for _ in range(COUNT):
        image = Image.new("L", (32, 32))
        font = ImageFont.load_default(random.randrange(18, 26))
        ImageDraw.Draw(image).text((16, 16), letter, 255, font, anchor="mm")
        yield image.rotate(random.uniform(-15, 15), translate=(random.randrange(-4, 5), random.randrange(-4, 5)))


def written(digit: int) -> Iterable[Image.Image]:
    """A digit in several hands."""
    digits = load_digits()
    for pixels in digits.images[digits.target == digit][:COUNT]:
        yield Image.fromarray((pixels * 15.9).astype("uint8"))


TASKS = {
    "photos": {"china": pieces("china.jpg"), "flower": pieces("flower.jpg")},
    "letters": {letter: drawn(letter) for letter in "ABC"},
    "digits": {str(digit): written(digit) for digit in range(3)},
    "more-digits": {"3": written(3)},
    "secret": {letter: drawn(letter) for letter in "XY"},
}

if __name__ == "__main__":
    random.seed(0)
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    for task, classes in TASKS.items():
        for name, images in classes.items():
            folder = place / task / name
            folder.mkdir(parents=True, exist_ok=True)
            for number, image in enumerate(images):
                image.save(folder / f"{number}.png")
        print(f"{place / task}: {', '.join(classes)}")
