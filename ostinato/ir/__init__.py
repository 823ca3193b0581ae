"""The intermediate representation: types, operator table, graph, text form, verifier and reference interpreter."""
