#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

void say(const char *format, ...) {
    char line[4096];
    va_list values;
    va_start(values, format);
    vsnprintf(line, sizeof line, format, values);
    va_end(values);
    fprintf(stderr, "gpud: %s\n", line);
}

/* ---- gpud's errors ---- */

/* By the codes in gpud/errors; what is not here is the caller's choice. */
static const struct {
    const char *wire;
    CUresult code;
} codes[] = {
    {"illegal-address", CUDA_ERROR_ILLEGAL_ADDRESS},
    {"kernel-trap", CUDA_ERROR_LAUNCH_FAILED},
    {"check-failed", CUDA_ERROR_ILLEGAL_ADDRESS},
    {"job-timeout", CUDA_ERROR_LAUNCH_TIMEOUT},
    {"device-lost", CUDA_ERROR_CONTEXT_IS_DESTROYED},
    {"compile", CUDA_ERROR_INVALID_PTX},
    {"empty-source", CUDA_ERROR_INVALID_IMAGE},
    {"ptx-syntax", CUDA_ERROR_INVALID_PTX},
    {"ptx-version", CUDA_ERROR_UNSUPPORTED_PTX_VERSION},
    {"unsupported-target", CUDA_ERROR_NO_BINARY_FOR_GPU},
    {"kernel-not-found", CUDA_ERROR_NOT_FOUND},
    {"kernel-rejected", CUDA_ERROR_NOT_SUPPORTED},
    {"launch-config", CUDA_ERROR_INVALID_VALUE},
    {"admission", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES},
    {"out-of-memory", CUDA_ERROR_OUT_OF_MEMORY},
    {"limit", CUDA_ERROR_OUT_OF_MEMORY},
    {"connection-lost", CUDA_ERROR_CONTEXT_IS_DESTROYED},
};

static struct bytes error_text(struct bytes error, const char *key) {
    struct reader value = map_value(error, key);
    return read_bytes(&value);
}

/* A trap says in its fields which kind it was. */
static CUresult trap_code(struct bytes error) {
    struct bytes message = error_text(error, "message");
    if (message.data != NULL && memmem(message.data, message.size, "assert", 6) != NULL)
        return CUDA_ERROR_ASSERT;
    if (message.data != NULL && memmem(message.data, message.size, "misaligned", 10) != NULL)
        return CUDA_ERROR_MISALIGNED_ADDRESS;
    return CUDA_ERROR_LAUNCH_FAILED;
}

CUresult failure_code(struct bytes error, CUresult otherwise) {
    struct bytes code = error_text(error, "code");
    if (bytes_equal(code, "kernel-trap"))
        return trap_code(error);
    for (size_t i = 0; i < COUNT_OF(codes); i++)
        if (bytes_equal(code, codes[i].wire))
            return codes[i].code;
    return otherwise;
}

char *failure_message(struct bytes error) {
    struct bytes message = error_text(error, "message");
    if (message.data == NULL)
        message = bytes_of("the daemon gave no reason");
    char *text = malloc(message.size + 1);
    if (text == NULL)
        return NULL;
    memcpy(text, message.data, message.size);
    text[message.size] = 0;
    return text;
}

CUresult failure_said(const char *what, struct bytes error, CUresult otherwise) {
    char *message = failure_message(error);
    char line[4096];
    snprintf(line, sizeof line, "%s: %s", what, message ? message : "out of memory");
    free(message);
    say("%s", line);
    report_refusal(line);
    return failure_code(error, otherwise);
}

/* ---- cuGetErrorName, cuGetErrorString ---- */

static const char *find_name(CUresult code) {
    size_t low = 0, high = error_name_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (error_names[middle].code < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < error_name_count && error_names[low].code == code ? error_names[low].name : NULL;
}

static const struct {
    CUresult code;
    const char *text;
} texts[] = {
    {CUDA_SUCCESS, "no error"},
    {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
    {CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"},
    {CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"},
    {CUDA_ERROR_ASSERT, "device-side assert triggered"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"},
    {CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "operation not supported"},
};

CUresult cuGetErrorName(CUresult error, const char **pStr) {
    if (pStr == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = find_name(error);
    return *pStr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr) {
    if (pStr == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = find_name(error); /* of most, the name says it */
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (texts[i].code == error)
            *pStr = texts[i].text;
    return *pStr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
