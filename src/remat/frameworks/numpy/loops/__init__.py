"""`scan` and `while_loop` on arrays: one autograd primitive for a whole loop, run by the interpreter.

| file | contents |
|---|---|
| `scan.py` | the entry points: users' values to flat leaves and back |
| `primitive.py` | a loop as one autograd primitive: first sweep when it is called, reverse sweep in its VJP |
| `activity.py` | which leaves of the carry are boxes in the plain program |
| `backend.py` | the part that both backends share |
| `autograd_backend.py` | steps that autograd records |
| `custom_vjp_backend.py` | steps that are pulled back by the user's `vjp=` |
| `second_order.py` | VJP and JVP of a loop as loops, which can be differentiated again |
| `measure.py` | the cost of a step |
"""
