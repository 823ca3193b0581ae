"""The planner: order, liveness, placement, the plan and its independent checker.

    plan = lower.plan_entry(graph, target, name="decode")        graph with chosen rows -> plan of one entry
    program = program.build_program({"decode": (graph, plan)})   entries over shared regions
    check.check_program(program, {"decode": graph}, target)      the proof; a plan that is not proven is not run

Stages, one file each: `storage` (who shares bytes), `order`, `liveness` (when storages live, in-place reuse), `problem` and `solvers` (offsets), `lower`
(steps), `regions` and `program` (what entries share), `plan` (the data, its text and its JSON), `check` with its own `replay`.
"""
