"""Loops of known length on JAX: the contract of lax.scan, exact gradients, counts and memory as planned."""

import collections
import functools
import os

import equinox
import jax
import jax.numpy as jnp
import pytest
from jax.monitoring import register_event_duration_secs_listener

import remat
from remat.planners import Mixed
from tests.frameworks.jax.programs import close, losses, lstm, same

Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize("slots", [5, *(pytest.param(slots, marks=pytest.mark.full) for slots in (1, 2, 40, 100))])
def test_gradients_are_those_of_lax_scan(slots):
    """To the last bit but for how XLA fuses sums and products."""
    cell, *args = lstm()
    plain, ours = losses(cell, slots=slots)
    # The emitters that the other tests leave out for speed add up in another order in one loop than in the other. JAX
    # 0.11 has no others, and no such option.
    options = {"xla_cpu_use_fusion_emitters": True} if "fusion_emitters" in os.environ.get("XLA_FLAGS", "") else {}
    jit = functools.partial(jax.jit, compiler_options=options)
    found, expected = (jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*args) for loss in (ours, plain))
    close(found, expected, 1e-16)
    assert found[0] == expected[0]


@pytest.mark.usefixtures("quick")
def test_a_step_with_all_kinds_of_leaves():
    """Floats of several widths, integers, booleans, keys of both styles, weak types, None, named tuples, modules."""
    keys = jax.random.key(3), jax.random.PRNGKey(4)
    module = equinox.nn.Linear(3, 3, key=keys[0])
    init = {
        "x": jnp.linspace(0.0, 1.0, 3),
        "half": jnp.ones(2, jnp.bfloat16),
        "count": 0,
        "flag": True,
        "keys": keys,
        "weak": 0.5,
        "none": None,
        "pair": Pair(jnp.float32(1.0), [jnp.ones(()), 1j * jnp.ones(2)]),
    }

    def step(scale, module, carry, x):
        new = jax.tree.map(lambda leaf: jax.random.split(leaf, 2)[0], carry["keys"])
        noise = jax.random.normal(new[0], (3,)) + jax.random.uniform(new[1], (3,))
        after = {
            "x": jnp.tanh(module(carry["x"])) + scale * x["a"] + 0.1 * noise,
            "half": carry["half"] * jnp.bfloat16(0.9),
            "count": carry["count"] + x["k"],
            "flag": ~jnp.asarray(carry["flag"]),
            "keys": new,
            "weak": carry["weak"] * 0.9,
            "none": None,
            "pair": Pair(
                carry["pair"].left * 1.01, [carry["pair"].right[0] * scale, carry["pair"].right[1] * (0.5 + 1j)]
            ),
        }
        return after, {"y": after["x"].sum(), "n": after["count"], "key": new[0], "none": None}

    xs = {"a": jnp.linspace(1.0, 2.0, 17), "k": jnp.arange(17)}

    def loss(scan, scale, module, x, half, right):
        first = {**init, "x": x, "half": half, "pair": Pair(init["pair"].left, right)}
        carry, ys = scan(functools.partial(step, scale, module), first, {**xs, "a": xs["a"] * scale})
        total = sum(
            jnp.sum(jnp.abs(leaf) ** 2).astype(float) for leaf in (carry["x"], carry["half"], *carry["pair"].right)
        )
        return total + (ys["y"] ** 2).sum() + carry["weak"], (carry, ys)

    args = jnp.float64(1.1), module, init["x"], init["half"], init["pair"].right
    found = jax.jit(jax.grad(functools.partial(loss, functools.partial(remat.scan, slots=3)), (0, 1, 2, 3, 4), True))(
        *args
    )
    expected = jax.jit(jax.grad(functools.partial(loss, jax.lax.scan), (0, 1, 2, 3, 4), True))(*args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    plain = [leaf for leaf in jax.tree.leaves(found) if jnp.issubdtype(leaf.dtype, jnp.number)]
    wanted = [leaf for leaf in jax.tree.leaves(expected) if jnp.issubdtype(leaf.dtype, jnp.number)]
    assert [leaf.dtype for leaf in plain] == [leaf.dtype for leaf in wanted]
    close(plain, wanted, 1e-12)


def test_nested_loops_keep_their_budgets():
    """An inner loop inside an outer one, each in its own memory: scan in scan, in lax.scan, and lax.scan in scan."""

    def loss(outer, inner, w):
        def step(carry, x):
            return inner(lambda c, y: (jnp.tanh(c * w + y), c.sum()), carry, jnp.linspace(0.0, x, 9))

        carry, ys = outer(step, jnp.ones(400), jnp.linspace(0.0, 1.0, 60))
        return carry.sum() + ys.sum()

    w, few = jnp.linspace(0.5, 1.5, 400), functools.partial(remat.scan, slots=3)
    compiled = {}
    for outer in (jax.lax.scan, few):
        for inner in (jax.lax.scan, few):
            compiled[outer, inner] = jax.jit(jax.grad(functools.partial(loss, outer, inner))).lower(w).compile()
    expected = compiled[jax.lax.scan, jax.lax.scan](w)
    for each in compiled.values():
        close(each(w), expected)
    taken = {pair: each.memory_analysis().temp_size_in_bytes for pair, each in compiled.items()}
    assert taken[few, few] < taken[jax.lax.scan, few] / 4 < taken[jax.lax.scan, jax.lax.scan] / 8
    assert taken[few, jax.lax.scan] < taken[jax.lax.scan, jax.lax.scan] / 4


@pytest.mark.usefixtures("quick")
def test_jax_checkpoint_around_and_inside():
    cell, *args = lstm(steps=15)
    plain, ours = losses(cell, slots=3)
    expected = jax.grad(plain, (0, 1, 2))(*args)
    close(jax.jit(jax.grad(jax.checkpoint(ours), (0, 1, 2)))(*args), expected)
    close(jax.jit(jax.grad(losses(jax.checkpoint(cell), slots=3)[1], (0, 1, 2)))(*args), expected)


@pytest.mark.parametrize(
    "memory",
    ["24 KiB", "400 KiB", *(pytest.param(each, marks=pytest.mark.full) for each in ("100 KiB", "2 MiB", "8 MiB"))],
)
def test_temporaries_stay_inside_the_budget(memory):
    """XLA's temporaries, but for the gradients of parameters, which are counted apart."""
    cell, params, init, xs = lstm(hidden=16, batch=4, steps=700)
    compiled = jax.jit(jax.grad(losses(cell, memory=memory)[1])).lower(params, init, xs).compile()
    outputs = 700 * 4 * 8 * 2  # the outputs, and their cotangents
    gradients = sum(leaf.size * 8 for leaf in params.values())
    limit = remat.units.to_bytes(memory, "memory")
    assert compiled.memory_analysis().temp_size_in_bytes - outputs - gradients <= limit
    close(compiled(params, init, xs), jax.grad(losses(cell)[0])(params, init, xs))


def test_a_cast_of_the_weights_is_not_held_for_each_step():
    """What a step makes of its constants alone is the same for all steps, and is held once."""

    def loss(scan, w, h):
        return scan(lambda h, _: (jnp.tanh((h.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(float)), None), h)

    w, h = jnp.eye(64) * 0.9, jnp.ones((2, 64))
    budget = functools.partial(remat.scan, xs=None, length=200, memory="72 KiB")
    compiled = jax.jit(jax.grad(lambda w, h: loss(budget, w, h)[0].sum())).lower(w, h).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 72 * 1024 + 4 * w.nbytes
    plain = functools.partial(jax.lax.scan, xs=None, length=200)
    close(compiled(w, h), jax.grad(lambda w, h: loss(plain, w, h)[0].sum())(w, h), 1e-9)


def test_programs_and_temporaries_do_not_grow_with_the_length():
    def compiled(steps):
        loss = jax.grad(lambda h: remat.scan(lambda h, _: (jnp.sin(h), None), h, length=steps, slots=20)[0].sum())
        lowered = jax.jit(loss).lower(jnp.ones(8))
        return len(lowered.as_text()), lowered.compile().memory_analysis().temp_size_in_bytes

    # Twice: in the first program that JAX lowers, loops share a function of which later ones have a copy each.
    _, small, large = compiled(100), compiled(100), compiled(100_000)
    assert large[0] < small[0] * 1.005
    assert large[1] == small[1]


@pytest.fixture
def compilations():
    """How often XLA has compiled."""
    found = []
    register_event_duration_secs_listener(
        lambda event, _, **__: found.append(event) if event.endswith("backend_compile_duration") else None
    )
    return found


def test_another_length_or_number_of_slots_is_not_compiled_again(compilations):
    def last(w, steps, slots):
        return remat.scan(lambda h, _: (jnp.sin(h * w), None), jnp.ones(4), length=steps, slots=slots)[0].sum()

    for steps, slots in ((1000, 30), (3, 30)):  # the first time, and what is made of numbers
        jax.value_and_grad(last)(jnp.float64(1.1), steps, slots)
    count = len(compilations)
    assert count
    for steps, slots in ((1000, 31), (1500, 29), (700, 30)):
        found = jax.value_and_grad(last)(jnp.float64(1.1), steps, slots)
        assert len(compilations) == count
        expected = jax.value_and_grad(
            lambda w, n=steps: jax.lax.scan(lambda h, _: (jnp.sin(h * w), None), jnp.ones(4), length=n)[0].sum()
        )
        close(found, expected(jnp.float64(1.1)))
        count = len(compilations)


@pytest.mark.usefixtures("quick")
def test_vmap_of_the_loss_and_of_the_loop():
    cell, params, init, xs = lstm(steps=12)
    plain, ours = losses(cell, slots=3)
    many = jnp.stack([xs, 0.5 * xs, -xs])

    def mean(loss):
        return lambda params, init, many: jax.vmap(loss, (None, None, 0))(params, init, many).mean()

    close(
        jax.jit(jax.grad(mean(ours), (0, 1, 2)))(params, init, many),
        jax.jit(jax.grad(mean(plain), (0, 1, 2)))(params, init, many),
    )
    each = jax.vmap(jax.grad(ours, (0, 2)), (None, None, 0))(params, init, many)
    close(each, jax.jit(jax.vmap(jax.grad(plain, (0, 2)), (None, None, 0)))(params, init, many))
    named = jax.vmap(
        lambda h: remat.scan(lambda h, _: (h + jax.lax.psum(h, "i") * 0.1, None), h, length=4, slots=2)[0],
        axis_name="i",
    )
    close(named(jnp.arange(3.0)), jnp.arange(3.0) + 3.0 * ((1.3**4 - 1) / 3))


def test_the_budget_of_a_batch_is_for_all_of_it():
    def loss(h):
        return remat.scan(lambda h, _: (jnp.sin(h), None), h, length=300, memory="100 KiB")[0].sum()

    many = jnp.ones((16, 50))
    compiled = jax.jit(jax.grad(lambda h: jax.vmap(loss)(h).sum())).lower(many).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 100 * 1024


def test_numbers_alone_are_jaxs_where_jax_traces():
    assert jax.jit(lambda w: remat.scan(lambda h, _: (h * w, None), 1.0, length=3, slots=1)[0])(2.0) == 8.0


@pytest.mark.usefixtures("quick")
def test_documented_functions_run_on_jax():
    final, shown = remat.checkpointed_loop(jnp.sin, jnp.ones(2), 20, 4)
    assert sorted(shown) == [4, 8, 12, 16]
    close(final, functools.reduce(lambda h, _: jnp.sin(h), range(20), jnp.ones(2)))
    gradient = jax.grad(lambda h: remat.checkpointed_loop(jnp.sin, h, 20, 4)[1][8].sum())(jnp.ones(2))
    close(gradient, jax.grad(lambda h: functools.reduce(lambda h, _: jnp.sin(h), range(8), h).sum())(jnp.ones(2)))


def test_plans_with_tapes_are_refused_inside_jit():
    plan = remat.plan(remat.Loop(20, tape=3), memory=30, planner=Mixed())
    with pytest.raises(remat.PlannerError, match="driven=True"):
        jax.jit(jax.grad(lambda h: remat.scan(lambda h, _: (jnp.sin(h), None), h, length=20, plan=plan)[0]))(1.0)


def test_a_profile_knows_the_plan_of_a_compiled_loop_and_no_more(tmp_path):
    with remat.profile() as run:
        jax.jit(jax.grad(lambda h: remat.scan(lambda h, _: (jnp.sin(h), None), h, length=30, slots=4)[0]))(0.7)
    call = run.calls[0]
    assert call.plan.forward_steps == remat.plan(remat.Loop(30), slots=4).forward_steps
    assert call.status == "compiled, and not seen to run"
    assert str(run).splitlines()[2].split()[4:6] == ["-", str(call.plan.forward_steps)]
    run.report(tmp_path / "run.html")
    assert "nobody sees it run" in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_errors_of_jax_name_the_users_step():
    def mine(hidden, x):
        return (hidden if hidden > 0 else -hidden), None

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"mine at .*argument hidden"):
        remat.scan(mine, jnp.float64(1.0), length=3, slots=2)


def test_programs_that_differ_in_how_they_are_run_are_told_apart():
    def value(scan, flag):
        def step(c, key):
            with jax.threefry_partitionable(flag):
                drawn = jax.random.uniform(key, (5,))
            return 0.9 * c + drawn, None

        return scan(step, jnp.ones(5), jax.random.split(jax.random.key(0), 6))[0]

    for flag in (True, False):
        same(value(functools.partial(remat.scan, slots=3), flag), value(jax.lax.scan, flag))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.int8, jnp.complex64])
def test_numbers_give_way_to_arrays(dtype):
    init = 0 if dtype == jnp.int8 else 0.0
    found = remat.scan(lambda c, x: (c + x, c), init, jnp.ones(5, dtype), slots=3)
    expected = jax.lax.scan(lambda c, x: (c + x, c), init, jnp.ones(5, dtype))
    assert [leaf.dtype for leaf in found] == [leaf.dtype for leaf in expected] == [dtype, dtype]


@pytest.mark.usefixtures("quick")
def test_a_place_in_a_batch_is_known_where_nothing_is_batched():
    def last(scan):
        return scan(lambda c, _: (jnp.sin(c) + jax.lax.axis_index("i"), None), jnp.float64(0.1), None, length=6)[0]

    found = jax.vmap(lambda x: x + last(functools.partial(remat.scan, slots=3)), axis_name="i")(jnp.arange(3.0))
    close(found, jax.vmap(lambda x: x + last(jax.lax.scan), axis_name="i")(jnp.arange(3.0)))
