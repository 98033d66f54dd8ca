"""Closure conversion: values that a function captures are found, become inputs, and are rebound while it runs.

| file | noun |
|---|---|
| `capture.py` | `ConvertedClosure`: a function of its captured values; the facts of CPython that this relies on |
| `reach.py` | the search: the containers, variables and generators that a function reaches |
| `new_contents.py` | contents with what steps have put into the user's containers |
| `placeholders.py` | values that a copy of a container must not keep alive |
| `captures.py` | where the search has found captured values, as references |
| `closure_search.py` | the same search by a filter that says which values a framework captures |
| `references.py` | variables that can be read and rebound: cells, items, attributes, partials |
| `bytecode.py` | the names that a function's bytecode reads and writes |
"""
