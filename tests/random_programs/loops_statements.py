"""The statements that random loops are composed of: what users write in loops, each with what it needs around it.

`h` is the state that most of them read and replace, `k` the number of the turn, `r` the list of results. In texts, `|`
ends a line.
"""

from dataclasses import dataclass

__all__ = ["HEADS", "STATEMENTS", "Statement"]


@dataclass(frozen=True)
class Statement:
    """Lines of a loop's body, with those before the loop, after it, and in its `else`."""

    name: str
    before: str
    body: str
    after: str = ""
    orelse: str = ""


HEADS = {
    "range": "for k in range(N):",
    "marked": "for k in remat.range(N, slots=3):",
    "enumerate": "for k, row in enumerate(W2):|    h = h + row",
    "while": "k = -1|while k < N - 1:|    k += 1",
    "reversed": "for k in reversed(range(N)):",
    "generator": "for k in (j for j in range(N)):",
    "zip": "for k, gain in zip(range(N), gains):|    h = h * gain",
    "items": "for k, gain in dict(enumerate(gains)).items():|    h = h * gain",
}

STATEMENTS = [
    Statement("list", "ys = []", "ys.append(h * 2)", "r.extend(ys[1:])"),
    Statement("last item", "zs = [np.sum(x)]", "zs.append(np.sum(h) + zs[-1])", "r.append(zs[-1])|r.extend(zs[:3])"),
    Statement("rows", "out = np.zeros((N, 4))", "out[k] = h - 1", "r.append(out * 2)"),
    Statement("table", "tab = {}", "tab[k] = np.sum(h) * 3", "r.extend(tab.values())|r.extend(tab)"),
    Statement("tape", "tape = {}", "tape[f'k{k}'] = h * 0.5", "r.extend(tape.values())|r.append(len(str([*tape])))"),
    Statement("sum", "acc = 0", "acc = acc + np.sum(h ** 2)", "r.append(acc)"),
    Statement("augmented", "aa = 0.0", "aa += np.sum(np.sin(h))", "r.append(aa)"),
    Statement("items", "buf = np.zeros(4)", "buf[k % 4] = np.sum(h) + buf[(k + 1) % 4]", "r.append(buf)"),
    Statement("count", "n = 0", "n += 1", "r.append(n)"),
    Statement("dict", "st = {'a': x, 'n': 0}", "st['a'] = np.sin(W @ st['a'])|st['n'] += k", "r.extend(st.values())"),
    Statement("None", "old = None", "d = 0.0 if old is None else np.sum((h - old) ** 2)|old = h|dd = d",
              "r.append(dd)"),
    Statement("best", "top, at = -1e9, -1", "s = np.sum(h)|if s > top:|    top, at = s, k",
              "r.append(top)|r.append(at)"),
    Statement("print", "", "print('turn', k)"),
    Statement("continue", "", "if k % 3 == 2:|    continue"),
    Statement("break", "", "if k == 6:|    break"),
    Statement("return", "", "if k == 6:|    return [*r, h * k, k]"),
    Statement("else", "", "if k == 9:|    break", "r.append(h)", "h = h * 3|print('all')"),
    Statement("else that is skipped", "ended = 0", "if k == 5:|    break", "r.append(ended)", "ended = 1"),
    Statement("numbers", "ts, t = [], 0.0", "ts.append(t)|t += 0.1", "r.extend(ts)"),
    Statement("texts", "names = []", "names.append(f's{k}')", "r.append(len(''.join(names)))"),
    Statement("mode", "m = 'a'", "m = 'b' if m == 'a' else 'a'|h = h * (2.0 if m == 'a' else 0.5)", "r.append(len(m))"),
    Statement("inner loop", "", "for j in range(2):|    h = np.sin(h + 0.1 * j)", "r.append(j)"),
    Statement(
        "inner list",
        "rows = []",
        "inner = []|for j in range(2):|    h = np.cos(h * 0.5 + j)|    inner.append(np.sum(h))|rows.append(inner)",
        "r.extend(v for each in rows for v in each)",
    ),
    Statement("inner while", "", "j = 0|while j < k % 3:|    h = h * 0.9|    j += 1", "r.append(j)"),
    Statement("last turn", "", "z = h * k", "r.append(z)|r.append(k)"),
    Statement("branch", "e = x", "if k % 2:|    e = np.tanh(h) + e", "r.append(e)"),
    Statement("tuple", "a, b = x, W[0]", "a, b = b * 0.9, np.tanh(W @ a)", "r.append(a - b)"),
    Statement("walrus", "", "if (q := np.sum(h)) is not None:|    h = h * 0.9", "r.append(q)"),
    Statement("try", "", "try:|    g = {0: 0.5, 3: 2.0}[k]|except KeyError:|    g = 1.0|h = h * g", "r.append(g)"),
    Statement("finally", "f = 0", "try:|    h = h * 1.01|finally:|    f += 2", "r.append(f)"),
    Statement("list of state", "hs = [x, x * 2]", "hs[k % 2] = np.tanh(W @ hs[(k + 1) % 2])", "r.extend(hs)"),
    Statement("records", "rec = []", "rec.append({'k': k, 'h': np.sum(h)})", "r.extend(p['h'] * p['k'] for p in rec)"),
    Statement("pairs", "ps = []", "ps.append((h, 'x', k))", "r.append(ps[1][0])|r.extend(p[2] for p in ps)"),
    Statement("dataclass", "pair = Pair(x, 1.0)", "pair = Pair(np.cos(W @ pair.a), pair.b * 0.9)",
              "r.extend([pair.a, pair.b])"),
    Statement("replace", "p2 = Pair(x, k0)", "p2 = dataclasses.replace(p2, a=p2.a + np.sin(h))",
              "r.append(p2.a * p2.b)"),
    Statement("named tuple", "nt = Named(x, 0)", "nt = nt._replace(u=np.sin(nt.u + h), v=nt.v + 1)", "r.extend(nt)"),
    Statement("method", "cell = Cell(W)", "h = cell.step(h, k)", "r.append(cell.calls)"),
    Statement("with", "", "with contextlib.nullcontext(0.7) as c:|    h = h * c + 0.1", "r.append(c)"),
    Statement("suppress", "", "with contextlib.suppress(KeyError):|    h = h * 1.1|    h = h * {1: 0.5}[k]",
              "r.append(h)"),
    Statement("lambda", "", "act = lambda v: np.tanh(v) * k0|h = act(h)", "r.append(k0)"),
    Statement("comprehension", "", "w = [h[j] * j for j in range(4)]|h = h + 0.1 * sum(w)", "r.append(w[1])"),
    Statement("star", "", "first, *rest = [h[0], h[1], h[2]]|h = h + rest[-1] * first * 0.1", "r.append(len(rest))"),
    Statement("match", "", "match k % 3:|    case 0:|        h = h + 0.1|    case 1:|        h = h - 0.2"),
    Statement("delete", "", "tmp = h * 2|h = np.sin(tmp)|del tmp"),
    Statement("swap", "lo, hi = x, x + 1", "lo, hi = hi, np.sin(lo)", "r.append(lo * 2 - hi)"),
    Statement("history", "last = [x, x]", "last = [*last[1:], h + 0.1 * last[0]]", "r.extend(last)"),
]  # fmt: skip
