/* The names under which the stand-in for nvJitLink is found, and the real library. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef NVJITLINK_MAJOR /* 12 or 13: of the library that this one stands for */
#define NVJITLINK_MAJOR 13
#endif

/* NVIDIA's header calls a function of release 12.3 by a name that ends so. */
#define ALIAS(name, version)                                                                       \
    extern __typeof__(name) alias_##name##_##version __asm__("__" #name "_" #version)              \
        __attribute__((alias(#name), visibility("default")));

#define ALIASES(name, major)                                                                       \
    ALIAS(name, major##_0)                                                                         \
    ALIAS(name, major##_1)                                                                         \
    ALIAS(name, major##_2)                                                                         \
    ALIAS(name, major##_3)                                                                         \
    ALIAS(name, major##_4)                                                                         \
    ALIAS(name, major##_5)                                                                         \
    ALIAS(name, major##_6)                                                                         \
    ALIAS(name, major##_7)                                                                         \
    ALIAS(name, major##_8)                                                                         \
    ALIAS(name, major##_9)

/* Begins the definition of a function with all of its names. */
#define STAND_IN(name, parameters)                                                                 \
    __attribute__((visibility("default"))) enum result name parameters;                            \
    ALIASES(name, 12)                                                                              \
    ALIASES(name, 13)                                                                              \
    enum result name parameters

/* The real library, opened; NULL: there is none. See nvjitlink_real.c for where it is looked for. */
void *nvjitlink_open_real(void);
