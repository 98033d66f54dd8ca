"""Programs that tests run in processes of their own, each with a backend of Keras, are no modules of tests."""

collect_ignore = ["keras_checks.py", "keras_models.py", "keras_program.py"]
