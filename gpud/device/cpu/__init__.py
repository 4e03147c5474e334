"""The CPU device: virtual SMs that run rewritten PTX as native code, through LLVM.

In the order in which a launch flows: `program` (loaded programs and their kernels), `codegen` with
`lower` (from PTX to LLVM IR, when a kernel is first needed with a block shape), `scheduling`
(runs, and the placement of their blocks on SMs), `sm` (the native loop that runs the blocks).
They share `ir` (LLVM IR) and `abi` (layouts of records in memory).
"""
