"""Closure conversion: the values that a function captures are found, become inputs, and are rebound while it runs.

| file | noun |
|---|---|
| `capture.py` | `ConvertedClosure`: a step as a function of its captured values; the CPython facts behind it |
| `reach.py` | the search for the containers, variables and generators that a function reaches |
| `cached_results.py` | what functions with a cache (functools) have in it |
| `new_contents.py` | contents that include what steps have put into the user's containers |
| `placeholders.py` | stand-ins for values that a copy of a container must not keep alive |
| `captures.py` | references to the captured values that the search has found |
| `captured_items.py` | many captured items of one list or dict, rebound at once |
| `closure_search.py` | the same search, for the values that a framework captures |
| `libraries.py` | which modules are libraries and which are the user's own |
| `references.py` | variables that can be read and rebound: cells, items, attributes, partials |
| `bytecode.py` | the names that a function's bytecode reads and writes |
"""
