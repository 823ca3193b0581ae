"""The self-test of a device, `ostinato doctor --conformance`: every row of every operator, the runtime's objects, capture and replay, known quirks.

What it finds is a value (`report.py`) that the owner of any card can send. Tests of kernels run rows through the same files.
"""
