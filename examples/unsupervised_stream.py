"""Learn from a stream of images without labels, then name and cluster images with few labels or none.

    python examples/unsupervised_stream.py

The stream shows two digits at a time. Nothing is announced and no image is kept: `StreamFeatures` adds up sums. Because
what the stream shows changes slowly, they tell the digits apart better than fixed features do.
"""

from __future__ import annotations

from hashroute import load_scenario
from hashroute.nn.stream_features import StreamFeatures
from hashroute.training.features import FeatureProbe, joined

digits = load_scenario("digits")
features = StreamFeatures(digits.image_shape, window=50)  # images; few, because this stream is short

for phase in digits.tasks:
    for images in phase.train.images.split(32):
        features.observe(images)

# Labels are read from here on: five of each digit.
probe, tasks = FeatureProbe(labels=5, asked=30, draws=3), digits.tasks
known, asked = joined(tasks, [task.train for task in tasks]), joined(tasks, [task.test for task in tasks])
for name, encode in (("fixed features", features.fixed), ("features of the stream", features)):
    found = probe.measure(encode, known, asked)
    print(f"{name}: a linear probe names {found['linear']:.1f} %, clusters have a purity of {found['purity']:.1f} %")
