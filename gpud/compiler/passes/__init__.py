"""Rewrites of PTX programs, one file a pass; `gpud.compiler.passes.pass_manager` has them all."""
