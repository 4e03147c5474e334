"""Passes that rewrite PTX programs, one per file; `gpud.compiler.passes.pass_manager` runs them."""
