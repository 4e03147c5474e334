"""From a PTX kernel and a block shape to LLVM IR.

In the order in which a kernel flows: `prepare`, `webs`, `regions`, `convergence`,
`induction`, `recompute`, `plan`, `stages`, `pieces`; `driver` calls the generated code.
"""
