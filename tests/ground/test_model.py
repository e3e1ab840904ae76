"""The reference model: shapes, causality, and the loss that every split shares."""

import pytest
import torch
import torch.nn.functional as F

from minipar import GPT, GPTConfig, data
from minipar.model import causal_attention, loss_sum

SMALL = GPTConfig(layers=2, width=32, heads=4, seq=16)


def parameter_count(config: GPTConfig) -> int:
    """The closed form, with biases everywhere but in the head."""
    h, f, kv = config.width, config.ffn, config.kv_heads * config.head_dim
    block = 2 * (h * h + h) + 2 * (h * kv + kv) + (h * f + f) + (f * h + h) + 4 * h
    return (config.vocab + config.seq) * h + config.layers * block + 2 * h + (0 if config.tied else config.vocab * h)


@pytest.mark.parametrize("config", [SMALL, GPTConfig(tied=True), GPTConfig(heads=4, kv_heads=2), GPTConfig(ffn=100)])
def test_parameters_count_as_the_closed_form(config: GPTConfig) -> None:
    assert sum(p.numel() for p in GPT(config).parameters()) == parameter_count(config)


def test_no_token_sees_what_comes_after_it() -> None:
    model = GPT(SMALL).double()
    tokens = torch.arange(16).view(1, 16)
    changed = tokens.clone()
    changed[0, 10] = 99
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_shared_keys_and_values_serve_their_group_of_heads() -> None:
    q, k, v = torch.randn(2, 4, 8, 16), torch.randn(2, 2, 8, 16), torch.randn(2, 2, 8, 16)
    repeated = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), is_causal=True)
    torch.testing.assert_close(causal_attention(q, k, v), repeated)


def test_the_same_seed_gives_the_same_model_and_leaves_the_random_state_alone() -> None:
    state = torch.get_rng_state()
    one, two, other = GPT(SMALL, seed=1), GPT(SMALL, seed=1), GPT(SMALL, seed=2)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.head.output.weight, other.head.output.weight)


def test_a_tied_head_is_the_token_embedding() -> None:
    model = GPT(GPTConfig(tied=True))
    assert model.head.output.weight is model.embedding.tokens.weight


def test_layers_in_order_are_the_model() -> None:
    model = GPT(SMALL)
    x = tokens = torch.arange(16).view(1, 16)
    for layer in model.layers():
        x = layer(x)
    assert torch.equal(x, model(tokens))


def test_loss_of_the_parts_adds_up_to_the_mean_over_all_targets() -> None:
    model = GPT(SMALL).double()
    batch = data.batch(0, 7, 16, ragged=True)
    whole = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten(), ignore_index=data.IGNORE)
    torch.testing.assert_close(sum(model.loss(part) for part in batch.parts(3)), whole)


def test_loss_of_nothing_is_zero_and_has_a_gradient() -> None:
    logits = torch.randn(0, 4, 8, requires_grad=True)
    loss = loss_sum(logits, torch.zeros(0, 4, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"width": 30}, "does not divide into 4 heads"),
        ({"kv_heads": 3}, "groups"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"experts": 2, "top_k": 3}, "choose 1 to 2"),
        ({"vocab": -1}, "vocab must be at least 1"),
        ({"dropout": 2}, "dropout is a share, at most 1, and is 2"),
    ],
)
def test_impossible_shapes_are_refused_with_a_reason(wrong: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        GPTConfig(**wrong)


@pytest.mark.parametrize(("vocab", "seq"), [(10, 8), (256, 4)])
def test_tokens_that_the_model_has_no_vector_for_are_refused_in_words(vocab: int, seq: int) -> None:
    model = GPT(GPTConfig(layers=1, width=8, heads=2, vocab=vocab, seq=seq))
    with pytest.raises(ValueError, match=rf"do not fit GPTConfig\(vocab={vocab}, seq={seq}\).*vocabulary of 256"):
        model.loss(data.batch(0, 2, 8))
