"""Headers that programs include for their host code, almost empty: that code is skipped.

Most of them bring the integer types, as those of Linux do. They are there for a source that is
compiled without its host code (`gpud.compiler.toolchain.host_code`). ``<limits>`` and
``<type_traits>`` have a use on the device, and are those of ``cuda/std``.
"""

from __future__ import annotations

from gpud.compiler.toolchain.c_headers import C_HEADERS

__all__ = ["HOST_HEADERS"]

_CPP = """
algorithm any array atomic bitset chrono codecvt complex condition_variable deque exception
execution filesystem forward_list fstream functional future initializer_list iomanip ios iosfwd
iostream istream iterator list locale map memory mutex new numeric optional ostream queue random
ratio regex set shared_mutex sstream stack stdexcept streambuf string string_view system_error
thread tuple typeindex typeinfo unordered_map unordered_set utility valarray variant vector
cerrno cfenv clocale complex.h csetjmp csignal cstdarg cwchar cwctype
"""
_SYSTEM = """
err.h errno.h error.h fcntl.h fenv.h getopt.h inttypes.h cinttypes libgen.h locale.h malloc.h
memory.h mpi.h omp.h pthread.h sched.h setjmp.h signal.h stdarg.h strings.h sys/mman.h sys/param.h
sys/resource.h sys/stat.h sys/time.h sys/times.h unistd.h wchar.h
"""
_CUDA = """
cuda.h cublas.h cublas_v2.h cuda_profiler_api.h cudaProfiler.h cufft.h curand.h cusolverDn.h
cusparse.h helper_cuda.h helper_functions.h helper_image.h helper_string.h helper_timer.h
nvToolsExt.h nvtx3/nvToolsExt.h thrust/copy.h thrust/device_ptr.h thrust/device_vector.h
thrust/fill.h thrust/host_vector.h thrust/reduce.h thrust/scan.h thrust/sort.h thrust/transform.h
"""
_STD = """#pragma once
#include <cuda/std/{name}>
namespace std {{ {using} }}
"""

_TYPES = """#pragma once
#include <cstdint>
#include <cstddef>
#include <climits>
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
"""

HOST_HEADERS: dict[str, str] = {
    **dict.fromkeys(f"{_CPP} {_SYSTEM} {_CUDA}".split(), "#pragma once\n#include <sys/types.h>\n"),
    "sys/types.h": _TYPES,
    "stdlib.h": C_HEADERS["stdlib.h"] + "#include <sys/types.h>\n",
    "limits": _STD.format(name="limits", using="using ::cuda::std::numeric_limits;"),
    "type_traits": _STD.format(name="type_traits", using="using namespace ::cuda::std;"),
}
"""The texts by the names in ``#include``."""
