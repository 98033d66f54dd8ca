"""The notebook was executed: its cells run again, print the same numbers, and show the pictures that it holds."""

import ast
import contextlib
import io
import json
import re
from pathlib import Path

NOTEBOOK = Path(__file__).parents[2] / "examples" / "rnn.ipynb"
MEASURED = re.compile(r"\d+\.\d+ MiB|\d+ ms.*")  # what another machine prints otherwise


def run(source, names):
    """What a cell prints, and the value of its last line, if that is an expression."""
    tree, value, printed = ast.parse(source), None, io.StringIO()
    shown = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, NOTEBOOK.name, "exec"), names)
        if shown is not None:
            value = eval(compile(ast.Expression(shown.value), NOTEBOOK.name, "eval"), names)
    return printed.getvalue(), value


def test_the_notebook_runs_and_holds_what_it_prints_and_draws():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names, pictures, texts = {}, 0, 0
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        assert cell["execution_count"] is not None
        printed, value = run("".join(cell["source"]), names)
        outputs = {output["output_type"]: output for output in cell["outputs"]}
        if printed:
            held = "".join(outputs["stream"]["text"])
            assert re.sub(r"\s+", " ", MEASURED.sub("", held)) == re.sub(r"\s+", " ", MEASURED.sub("", printed))
            texts += 1
        if value is not None:
            assert "".join(outputs["execute_result"]["data"]["image/svg+xml"]).lstrip("<?xml").count("<svg")
            assert value._repr_svg_()
            pictures += 1
    assert (texts, pictures) == (3, 2)
