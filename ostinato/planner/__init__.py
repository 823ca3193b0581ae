"""The planner: order, liveness, placement, the plan and its independent checker.

    plan = lower.plan_entry(graph, target, name="decode")        graph with chosen rows -> plan of one entry
    program = program.build_program({"decode": (graph, plan)})   entries over shared regions
    check.check_program(program, {"decode": graph}, target)      the proof; a plan that is not proven is not run

Stages, one file each: `storage` (who shares bytes), `order` and `order_search` (in which order), `spaces` (on which device), `liveness` (when storages live,
in-place reuse), `problem` and `solvers` (offsets), `recompute` (what runs twice to keep to a limit of memory), `lower` and `emit` (steps), `usage` (how well
the arena is used), `regions` and `program` (what entries share). The plan is data (`plan`) with a text (`plan_text`) and a file (`saved`). The proof is
`check`; its own files `expected`, `check_step`, `replay` and `check_clones` share nothing with the stages.
"""
