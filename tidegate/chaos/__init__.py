"""A user's own program under injected faults, its output held against that of undisturbed runs: `tidegate chaos`.

`rounds.py` starts the program again and again as a process of its own (`child.py`), which puts recorders and faults
into its job; what they leave in the folder of a round is compared by `comparison.py` and told by `report.py`.
"""
