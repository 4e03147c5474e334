"""The checking mode: native code that a checked kernel calls at its accesses and barriers."""
