"""Chains and models under a budget in bytes: measured, planned, tried, and run according to the plan.

| file | contents |
|---|---|
| `auto_checkpoint.py` | the entry points `auto_checkpoint`, `largest_batch` and `measure` |
| `planned_model.py`, `model_budget.py`, `input_shapes.py` | a model under a budget: a plan for each shape of inputs |
| `find_blocks.py`, `planned_blocks.py` | the blocks of a model, and their calls by a plan |
| `block_ranges.py` | ranges of blocks that run without a tape |
| `measure_chain.py`, `in_place_stages.py` | the costs of stages; stages that write into their input |
| `runs_without_graph.py` | measuring calls without a graph, where they can do without one |
| `measure_model.py`, `cut_blocks.py` | a model as a chain of its blocks and what is around them |
| `block_stage.py` | the options of a block: how much of its tape it keeps |
| `model_plan.py`, `plan_trials.py`, `model_trial.py` | the plan of a model, tried before it is used |
| `first_training_step.py` | whether the first real training step stays within the budget |
| `plan_agreement.py` | one plan in all processes |
| `compiled_blocks.py` | blocks as compiled code that keeps what the plan says |
| `whole_model.py`, `planned_lineage.py` | a model as one graph, planned operator by operator |
| `step_trace.py`, `backward_trace.py` | the graph of a training step and of its backward, as they ran once |
| `kept_blocks.py` | for profiles: what blocks that are not segments keep |
"""
