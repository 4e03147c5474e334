/* Finds NVIDIA's libnvJitLink, beside the program that runs: by its path, since the name alone is
 * the stand-in's. */
#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvjitlink.h"

#define NAME(major) "libnvJitLink.so." #major
#define EXPANDED(major) NAME(major)

/* Where wheels and toolkits have it, below the folder of an environment or a toolkit. */
static const char *const PLACES[] = {
    "lib/python3*/site-packages/nvidia/cu13/lib/",
    "lib/python3*/site-packages/nvidia/nvjitlink/lib/",
    "lib64/",
    "lib/",
    "targets/x86_64-linux/lib/",
};

static void *open_below(const char *folder) {
    void *found = NULL;
    for (unsigned i = 0; folder && !found && i < sizeof PLACES / sizeof *PLACES; i++) {
        char pattern[PATH_MAX];
        glob_t paths;
        int size = snprintf(pattern, sizeof pattern, "%s/%s" EXPANDED(NVJITLINK_MAJOR), folder,
                            PLACES[i]);
        if (size < 0 || (size_t)size >= sizeof pattern || glob(pattern, 0, NULL, &paths) != 0)
            continue;
        for (size_t n = 0; found == NULL && n < paths.gl_pathc; n++)
            found = dlopen(paths.gl_pathv[n], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        globfree(&paths);
    }
    return found;
}

/* The folder above that of the program, as it was called: a virtual environment's python is a link
 * to another's. */
static bool program_prefix(char *prefix, size_t room) {
    char command[PATH_MAX];
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t size = file ? fread(command, 1, sizeof command - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    command[size] = 0;
    const char *path = getenv("PATH");
    while (strchr(command, '/') == NULL && path != NULL && *path) {
        size_t length = strcspn(path, ":");
        int written = snprintf(prefix, room, "%.*s/%s", (int)length, path, command);
        if (written > 0 && (size_t)written < room && access(prefix, X_OK) == 0)
            break;
        path += length + (path[length] == ':');
        prefix[0] = 0;
    }
    if (strchr(command, '/') != NULL)
        snprintf(prefix, room, "%s", command);
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(prefix, '/');
        if (slash == NULL)
            return false;
        *slash = 0;
    }
    return prefix[0] != 0;
}

void *nvjitlink_open_real(void) {
    static const char *const variables[] = {"VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME"};
    const char *named = getenv("GPUD_NVJITLINK");
    if (named != NULL && *named)
        return dlopen(named, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    char prefix[PATH_MAX] = "";
    void *found = program_prefix(prefix, sizeof prefix) ? open_below(prefix) : NULL;
    for (unsigned i = 0; found == NULL && i < sizeof variables / sizeof *variables; i++)
        found = open_below(getenv(variables[i]));
    return found ? found : open_below("/usr/local/cuda");
}
