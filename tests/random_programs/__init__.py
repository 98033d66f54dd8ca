"""Random programs: from a seed a program is made, run plainly and with remat, and everything that can be seen compared.

A program is Python source that a generator writes from random decisions, so that it can be printed, run alone and
shortened. `python -m tests.random_programs --first 0 --count 1000 --framework torch` runs many of them; --show prints
one. With --framework loops a program is a plain loop for `remat.checkpointed`, on NumPy or PyTorch. Verdicts: right;
refused (a RematError), as the program deserves or wrongly; wrong; crash.
"""
