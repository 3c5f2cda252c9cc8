"""eval() changes nothing and is the same every time; train() evolves bases."""

import torch

from hashroute import UnitSpec
from support import small_network, some_images, train


def test_eval_touches_nothing_and_repeats_itself() -> None:
    network = small_network(units=[UnitSpec(4, 3, 1, 1, dropout=0.5)] * 5, tau_empty=0.9, tau_expand=0.9, max_age=1)
    train(network, steps=3)
    network.eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    random_state = torch.get_rng_state()
    outputs = [network(some_images(30, seed=99)) for _ in range(3)]
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    for output in outputs[1:]:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(output, outputs[0], strict=True))


def test_eval_never_takes_an_empty_unit() -> None:
    network = small_network()
    network.train()
    network(some_images(2))
    initialised = set(network.bases.ranks.nonzero()[:, 0].tolist())
    assert len(initialised) < 4
    network.eval()
    paths = network(some_images(20, seed=7)).paths
    assert set(paths.unique().tolist()) <= initialised | {-1}
    assert (paths[:, -1] == -1).all()


def test_train_mode_evolves_bases_even_without_gradients() -> None:
    network = small_network()
    with torch.no_grad():
        network(some_images())
    assert network.bases.ranks.any()


def test_eval_before_any_training_gives_the_hash_of_the_image() -> None:
    network, images = small_network().eval(), some_images()
    routing = network(images)
    assert torch.equal(routing.features, network.image_hash.normalised(images))
    assert (routing.paths == -1).all()
    assert not network.bases.ranks.any()
