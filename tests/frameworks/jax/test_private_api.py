"""Each undocumented part of JAX that is used, by name: a release of JAX that changes one fails here, and says which.

All of them are used in `avals.py`, `identities.py`, `mutable_arrays.py` and `primitives.py` alone.
"""

import ast
import re
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import remat.frameworks.jax as package
from remat.frameworks.jax.avals import BatchAxis, have_distinct_buffers, innermost_trace, is_tracing, trace_of

# module → the names that are imported from it, or looked up in it
NAMES = {
    "jax._src.ad_checkpoint": ["checkpoint"],
    "jax._src.checkify": ["checkify_jaxpr", "error_checks"],
    "jax._src.core": ["trace_state_clean"],
    "jax._src.effects": ["remat_allowed_effects"],
    "jax._src.interpreters.ad": ["LinearizeTrace", "fallback_linearize_rule", "primitive_linearizations"],
    "jax._src.lax.control_flow.loops": ["fori_loop", "scan", "while_loop"],
    "jax._src.state.discharge": ["discharge_state", "register_discharge_rule"],
    "jax.core": ["AbstractValue", "Tracer"],
    "jax.extend.core": [
        "ClosedJaxpr",
        "Jaxpr",
        "Literal",
        "Primitive",
        "jaxpr_as_fun",
        "mapped_aval",
        "unmapped_aval",
    ],
    "jax.extend.core.primitives": [
        "closed_call_p",
        "custom_jvp_call_p",
        "custom_lin_p",
        "custom_vjp_call_p",
        "jit_p",
        "remat_p",
        "rng_uniform_p",
    ],
    "jax.interpreters.ad": [
        "JVPTracer",
        "Zero",
        "instantiate_zeros",
        "is_undefined_primal",
        "primitive_jvps",
        "primitive_transposes",
    ],
    "jax.interpreters.batching": ["bdim_at_front", "fancy_primitive_batchers"],
    "jax.interpreters.mlir": ["lower_fun", "register_lowering"],
    "jax.interpreters.partial_eval": ["JaxprTracer", "dce_jaxpr", "dce_rules"],
}
ROOM = Path(package.__file__).parent
ALLOWED = {"avals.py", "transforms/identities.py", "transforms/mutable_arrays.py", "transforms/primitives.py"}
PRIVATE = re.compile(
    r"jax\._src|jax\.core|jax\.extend|jax\.interpreters|from jax import .*\b(core|extend|interpreters)\b|AxisData"
    r"|\._trace\b|\"_trace\"|\.ctx\b|\bvma\b|manual_axis_type|explicit_mesh_axis|\.spmd_name|to_tangent_aval"
    r"|dce_jaxpr|unsafe_buffer_pointer|primitive\.name|hasattr\(var"
)


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in NAMES for name in NAMES[module]])
def test_names_of_modules_exist(module, name):
    assert hasattr(import_module(module), name), f"{module}.{name} is gone in JAX {jax.__version__}"


def test_the_list_of_names_is_complete():
    # Looked up, so that their absence can be borne.
    used = {(module, name) for module in NAMES if module.startswith("jax._src") for name in NAMES[module]}
    for file in ALLOWED:
        tree = ast.parse((ROOM / file).read_text())
        short = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in (*NAMES, "jax.interpreters"):
                for alias in node.names:
                    short[alias.name] = f"{node.module}.{alias.name}"
                    used.add((node.module, alias.name))
        modules = {name: path for name, path in short.items() if path in NAMES}
        used -= {tuple(path.rsplit(".", 1)) for path in modules.values()}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                used.add((modules[node.value.id], node.attr))
    assert used == {(module, name) for module in NAMES for name in NAMES[module]}


@pytest.mark.parametrize("file", sorted(str(path.relative_to(ROOM)) for path in ROOM.rglob("*.py")))
def test_no_other_file_uses_what_jax_does_not_document(file):
    if file in ALLOWED:
        return
    lines = enumerate((ROOM / file).read_text().splitlines(), 1)
    assert [f"{file}:{number}: {line.strip()}" for number, line in lines if PRIVATE.search(line)] == []


def test_tracers_have_the_trace_that_they_belong_to():
    seen = {}

    @jax.make_jaxpr
    def traced(x):
        seen["tracer"], seen["trace"] = hasattr(x, "_trace"), trace_of(x) is innermost_trace()
        return x

    traced(1.0)
    assert seen["tracer"], "Tracer._trace is gone"
    assert seen["trace"]
    assert trace_of(jnp.zeros(())) is None is innermost_trace()


def test_one_can_ask_whether_jax_traces():
    answers = []
    for transform in (jax.jit, jax.grad, jax.vmap, jax.make_jaxpr, jax.checkpoint):
        argument = jnp.ones(3) if transform is jax.vmap else jnp.ones(())
        transform(lambda x: (answers.append(is_tracing()), x)[1])(argument)
    assert answers[:4] == [True] * 4
    assert not is_tracing()


def test_equations_have_a_context_and_primitives_that_compare():
    eqn = jax.make_jaxpr(jnp.sin)(1.0).eqns[0]
    assert hasattr(eqn, "ctx"), "JaxprEqn.ctx is gone"
    assert hash(eqn.ctx) == hash(jax.make_jaxpr(jnp.sin)(1.0).eqns[0].ctx)
    assert eqn.primitive is jax.make_jaxpr(jnp.sin)(2.0).eqns[0].primitive


@pytest.mark.parametrize("rule", [jax.custom_jvp, jax.custom_vjp])
def test_custom_rules_are_known_by_their_primitives(rule):
    from remat.frameworks.jax.transforms.cache_key import has_custom_rules

    def fn(x):
        return x * 2.0

    wrapped = rule(fn)
    if rule is jax.custom_jvp:
        wrapped.defjvp(lambda primals, tangents: (fn(*primals), fn(*tangents)))
    else:
        wrapped.defvjp(lambda x: (fn(x), None), lambda _, bar: (2.0 * bar,))
    for program in (jax.make_jaxpr(wrapped)(1.0), jax.make_jaxpr(jax.jit(lambda x: jnp.sin(wrapped(x))))(1.0)):
        assert has_custom_rules(program)
    assert not has_custom_rules(jax.make_jaxpr(fn)(1.0))


def test_avals_say_over_which_mesh_axes_they_vary():
    aval = jax.typeof(jnp.zeros(()))
    varying = getattr(aval, "vma", None)
    if varying is None:
        varying = aval.manual_axis_type.varying
    assert frozenset(varying) == frozenset(), "neither aval.vma nor aval.manual_axis_type.varying"
    assert aval.to_tangent_aval() == aval


def test_a_batching_rule_gets_the_axis():
    axes = []
    primitive = import_module("jax.extend.core").Primitive("test_axis")
    primitive.def_abstract_eval(lambda x: x)

    def rule(axis, args, dims):
        axes.append(BatchAxis.of(axis))
        return args[0], dims[0]

    import_module("jax.interpreters.batching").fancy_primitive_batchers[primitive] = rule
    jax.vmap(primitive.bind, axis_name="b")(jnp.ones(3))
    jax.vmap(primitive.bind)(jnp.ones(3))
    assert axes == [BatchAxis(3, "b", None, None), BatchAxis(3, None, None, None)]


def test_arrays_have_the_address_of_their_buffer():
    x = jnp.arange(3.0)
    assert x.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
    assert have_distinct_buffers([x, x + 1])
    assert not have_distinct_buffers([x, x])
    assert not have_distinct_buffers([jax.ShapeDtypeStruct((), float)])  # as an array on several devices, it has none


def test_the_vjp_of_jax_is_a_pytree_of_residuals():
    _, vjp = jax.vjp(lambda x: jnp.sin(x) * 2.0, jnp.ones(3))
    leaves, tree = jax.tree.flatten(vjp)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    assert jax.tree.unflatten(tree, leaves)(jnp.ones(3))[0].shape == (3,)
