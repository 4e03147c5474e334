/* What a program's launches came to, for `gpuctl exec --report`. */
#ifndef GPUD_REPORT_H
#define GPUD_REPORT_H

#include "msgpack.h"

enum form { FORM_PERSISTENT, FORM_SLICED, FORM_WHOLE, FORMS };

enum form report_form(struct bytes name);
void report_kernel(enum form form);  /* with one more block shape */
void report_launch(enum form form);
void report_refusal(const char *what);
void report_runtime(void); /* the program has NVIDIA's runtime inside */

#endif
