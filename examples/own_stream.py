"""Learn a stream that nobody cuts into tasks.

    python examples/own_stream.py

Images come in small batches: first of the digits 0 to 4, then of 5 to 9, then of 0 to 4 again. The learner is told
their labels, but not when the data changes. It notices, learns each episode in parts, and recognises what comes back.
It never holds more images than fit into its window.
"""

import torch

from hashroute import create_learner, load_scenario
from hashroute.learners.stream import ChangeNoticed, EpisodeBegan, Learned, Recognised, Skipped, StreamSettings

pairs = [task.train for task in load_scenario("digits").tasks]
images = torch.cat([pair.images[:] for pair in pairs])
labels = torch.cat([pair.labels + 2 * place for place, pair in enumerate(pairs)])

torch.manual_seed(0)
rows = []
for digits, count in ((range(5), 700), (range(5, 10), 500), (range(5), 400)):
    known = torch.isin(labels, torch.tensor(digits)).nonzero()[:, 0]
    rows.append(known[torch.randint(len(known), (count,))])
stream = torch.cat(rows)

learner = create_learner("hrn", (1, 8, 8), epochs=3)
settings = StreamSettings(window=500, recent=96)
events = []
for batch in stream.split(64):
    events += learner.observe(images[batch], labels[batch], settings)
events += learner.close_stream()

for event in events:
    match event:
        case EpisodeBegan(episode, image):
            print(f"image {image:,}: episode {episode} begins")
        case ChangeNoticed(image, divergence):
            print(f"image {image:,}: the data has changed, by {divergence:.0f} nats")
        case Recognised(_, task, _):
            print("  it is new data" if task is None else f"  it is the data of {task!r}")
        case Learned(_, task, count, _, decision):
            print(f"  {count} images are learned as {task!r}: {decision.action}")
        case Skipped(_, count, score):
            known = "too few are left" if score is None else f"{score:.0f} % of the answers are right"
            print(f"  {count} images are not learned: {known}")

print(f"the last images, no task given: {learner.predict(images[stream[-5:]]).labels.tolist()}")
