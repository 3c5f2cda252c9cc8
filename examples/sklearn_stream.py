"""Learn a stream of single images with the estimator for scikit-learn.

    python examples/sklearn_stream.py

Images come one at a time: first the digits 0 to 4, then 5 to 9. Whenever 120 have come, they are learned as an episode
and dropped. Before that, each image is a test: the model answers it, then gets its label.
"""

import numpy as np
from sklearn.datasets import load_digits

from hashroute.integrations.sklearn import HashRoutedClassifier

images, labels = load_digits(return_X_y=True)
stream = np.argsort(labels >= 5, kind="stable")[::3]

model = HashRoutedClassifier(image_shape=(1, 8, 8), epochs=5, random_state=0)
waiting: list[int] = []
right: list[bool] = []
for index in stream:
    if hasattr(model, "learner_"):
        right.append(model.predict(images[[index]])[0] == labels[index])
    waiting.append(index)
    if len(waiting) == 120:
        model.partial_fit(images[waiting], labels[waiting])
        recent = f", {np.mean(right[-120:]):.0%} of the last 120 answers right" if right else ""
        print(f"{len(model.episodes_)} episodes, {len(model.classes_)} classes{recent}")
        waiting.clear()

print(f"all images: {model.score(images, labels):.0%} right")
