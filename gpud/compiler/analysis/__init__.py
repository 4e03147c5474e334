"""What a PTX function does, found without changing it. Pure: no I/O, clock or device."""
