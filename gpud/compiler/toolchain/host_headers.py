"""Headers that programs include for their host code, almost empty: that code is skipped.

Most of them bring the integer types, as those of Linux do; of CUB what runs on the device is left.
They are there for a source that is compiled without its host code
(`gpud.compiler.toolchain.host_code`). ``<limits>`` and ``<type_traits>`` have a use on the device,
and are those of ``cuda/std``.
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
cuda.h cublas.h cublasLt.h cublasXt.h cublas_api.h cublas_v2.h cuda_profiler_api.h cudaProfiler.h
cudnn.h cufft.h cufftXt.h curand.h cusolverDn.h cusolverSp.h cutensor.h nccl.h nvml.h nvrtc.h
cusparse.h helper_cuda.h helper_functions.h helper_image.h helper_string.h helper_timer.h
nvToolsExt.h nvtx3/nvToolsExt.h thrust/copy.h thrust/device_ptr.h thrust/device_vector.h
thrust/fill.h thrust/host_vector.h thrust/reduce.h thrust/scan.h thrust/sort.h thrust/transform.h
"""
_STD = """#pragma once
#include <cuda/std/{name}>
namespace std {{ {using} }}
"""

# Of CUB, what blocks, warps and threads call; what launches is the host's.
_CUB_PARTS = """
block/block_adjacent_difference block/block_discontinuity block/block_exchange
block/block_histogram block/block_load block/block_merge_sort block/block_radix_rank
block/block_radix_sort block/block_reduce block/block_run_length_decode block/block_scan
block/block_shuffle block/block_store
iterator/arg_index_input_iterator iterator/cache_modified_input_iterator
iterator/cache_modified_output_iterator
thread/thread_load thread/thread_operators thread/thread_reduce thread/thread_scan
thread/thread_search thread/thread_sort thread/thread_store
warp/warp_exchange warp/warp_load warp/warp_merge_sort warp/warp_reduce warp/warp_scan
warp/warp_store
"""
_CUB_DEVICE = """
adjacent_difference copy for histogram memcpy merge merge_sort partition radix_sort reduce
run_length_encode scan segmented_radix_sort segmented_reduce segmented_sort select transform
"""
_CUB = "".join(f"#include <cub/{part}.cuh>\n" for part in _CUB_PARTS.split())

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
    "cub/cub.cuh": f"#pragma once\n{_CUB}",
    "cub/util_allocator.cuh": "#pragma once\n",
    **{f"cub/device/device_{part}.cuh": "#pragma once\n" for part in _CUB_DEVICE.split()},
    "stdlib.h": C_HEADERS["stdlib.h"] + "#include <sys/types.h>\n",
    "limits": _STD.format(name="limits", using="using ::cuda::std::numeric_limits;"),
    "type_traits": _STD.format(name="type_traits", using="using namespace ::cuda::std;"),
}
"""The texts by the names in ``#include``."""
