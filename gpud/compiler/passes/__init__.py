"""Rewrites of PTX programs, one file a pass; `gpud.compiler.passes.table` has them all."""
