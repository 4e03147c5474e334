#include "report.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"

enum { MOST_REFUSALS = 32, REFUSAL_BYTES = 256 };

static const char *const names[FORMS] = {"persistent", "sliced", "whole"};
static _Atomic(uint64_t) launches[FORMS], kernels[FORMS];
static _Atomic(bool) has_runtime;

static struct {
    pthread_mutex_t lock;
    char texts[MOST_REFUSALS][REFUSAL_BYTES];
    unsigned counts[MOST_REFUSALS];
    unsigned used, others;
} refusals = {.lock = PTHREAD_MUTEX_INITIALIZER};

enum form report_form(struct bytes name) {
    for (enum form form = 0; form < FORMS; form++)
        if (bytes_equal(name, names[form]))
            return form;
    return FORM_WHOLE;
}

void report_kernel(enum form form) {
    atomic_fetch_add_explicit(&kernels[form], 1, memory_order_relaxed);
}

void report_launch(enum form form) {
    atomic_fetch_add_explicit(&launches[form], 1, memory_order_relaxed);
}

void report_refusal(const char *what) {
    char text[REFUSAL_BYTES];
    snprintf(text, sizeof text, "%s", what);
    pthread_mutex_lock(&refusals.lock);
    unsigned i = 0;
    while (i < refusals.used && strcmp(refusals.texts[i], text) != 0)
        i++;
    if (i == MOST_REFUSALS) {
        refusals.others++;
    } else {
        if (i == refusals.used)
            memcpy(refusals.texts[refusals.used++], text, sizeof text);
        refusals.counts[i]++;
    }
    pthread_mutex_unlock(&refusals.lock);
}

void report_runtime(void) {
    atomic_store_explicit(&has_runtime, true, memory_order_relaxed);
}

static uint64_t all_launches(void) {
    uint64_t all = 0;
    for (int form = 0; form < FORMS; form++)
        all += launches[form];
    return all;
}

static void print_forms(void) {
    char line[512] = "";
    for (int form = 0; form < FORMS; form++) {
        size_t size = strlen(line);
        snprintf(line + size, sizeof line - size, "%s %llu %s (%llu kernels and block shapes)",
                 form ? "," : "", (unsigned long long)launches[form], names[form],
                 (unsigned long long)kernels[form]);
    }
    say("report: %llu launches:%s", (unsigned long long)all_launches(), line);
}

static void print_refusals(void) {
    for (unsigned i = 0; i < refusals.used; i++)
        say("report: refused %u times: %s", refusals.counts[i], refusals.texts[i]);
    if (refusals.others)
        say("report: refused besides: %u times", refusals.others);
    if (refusals.used == 0)
        say("report: nothing was refused");
}

/* A program that has nothing to do with CUDA, such as a shell, says nothing. */
__attribute__((destructor)) static void at_end(void) {
    const char *asked = getenv("GPUD_EXEC_REPORT");
    bool is_asked = asked != NULL && strcmp(asked, "1") == 0;
    if (is_asked && (all_launches() > 0 || refusals.used > 0)) {
        print_forms();
        print_refusals();
    }
    if (has_runtime && all_launches() == 0)
        say("this program has NVIDIA's CUDA runtime inside, which runs over NVIDIA's own driver "
            "only: build it with `nvcc -cudart shared`, or use what calls the driver (Numba, "
            "Triton)");
}
