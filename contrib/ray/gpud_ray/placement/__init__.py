"""Which node an item goes to: pure functions and a pure state machine, without Ray and clocks."""
