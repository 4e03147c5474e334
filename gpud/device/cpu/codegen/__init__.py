"""From a PTX kernel and a block shape to LLVM IR.

In the order in which a kernel flows: `preparation` (of the PTX), `analysis`, `hoisting`,
`emit` (of LLVM IR); `runtime` calls the generated code.
"""
