"""Whether speculation leaves a target's output alone: exact laws, tests, and what each would have caught."""
