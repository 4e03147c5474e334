"""The programs that docs/record_day.py runs and shows."""

SERVICE = r'''"""Answers a request every 50 ms, and goes on when the daemon is restarted."""
import time
import numpy as np
import gpud_client as gc

SOURCE = r"""
extern "C" __global__ void answer(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float a = x[i];
    for (int k = 0; k < 20000; ++k) a = a * 0.999f + 0.5f;
    y[i] = a;
}"""
with gc.connect(reconnect=True) as gpu:
    answer = gpu.kernel(SOURCE, "answer")
    x, y = gpu.zeros(4096, np.float32), gpu.zeros(4096, np.float32)
    while True:
        answer.submit(grid=16, block=256, args=(x, y, np.int32(4096)), reservation=1).result()
        time.sleep(0.05)
'''

TRAIN = r'''"""Works through the night, on what others leave."""
import sys
import numpy as np
import gpud_client as gc

SOURCE = r"""
extern "C" __global__ void step(float* w, int rounds) {
    float a = threadIdx.x;
    for (int k = 0; k < rounds; ++k) a = a * 0.999f + 1.0f;
    if (a < 0) w[threadIdx.x] = a;
}"""
with gc.connect() as gpu:
    step, w = gpu.kernel(SOURCE, "step"), gpu.zeros(256, np.float32)
    job = step.submit(grid=int(sys.argv[1]), block=256, args=(w, np.int32(20000)))
    job.result()
'''

WRONG = r"""extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + z[i];
}
"""

MISTAKES = r"""import numpy as np
import gpud_client as gc

def attempt(call):
    try:
        call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}\n")

with gc.connect() as gpu:
    module = gpu.module(open("saxpy.cu").read().replace("z[i]", "y[i]"))
    saxpy = module.kernel("saxpy")
    x = gpu.array(np.ones(256, np.float32))
    attempt(lambda: module.kernel("saxpi"))
    attempt(lambda: saxpy(x, x))
    attempt(lambda: saxpy.submit(1, 256, (np.float32(2), [1.0] * 256, x, np.int32(256))))
    attempt(lambda: saxpy.submit(1, 256, (np.float32(2), x, x, np.int32(256)), reservation=9))
    attempt(lambda: gpu.empty(1 << 42))
"""

BLUR = r"""extern "C" __global__ void blur(const float* in, float* out, int n) {
    __shared__ float tile[258];
    int t = threadIdx.x, i = blockIdx.x * 256 + t;
    tile[t + 1] = in[i];
    if (t == 0) tile[0] = i > 0 ? in[i - 1] : 0;
    if (t == 255) tile[257] = in[i + 1];
    __syncthreads();
    out[i] = (tile[t] + tile[t + 1] + tile[t + 2]) / 3;
}
"""

CHECKED = r"""import numpy as np
import gpud_client as gc

with gc.local(check=True) as gpu:
    blur = gpu.kernel(open("blur.cu").read(), "blur")
    x, y = gpu.array(np.ones(1024, np.float32)), gpu.empty(1024, np.float32)
    try:
        blur.submit(grid=4, block=256, args=(x, y, 1024)).result()
    except gc.CheckFailed as error:
        for one in error.findings:
            print(f"line {one.file_line}: {one.kind}, element {one.element} of {one.label}")
    try:
        blur.submit(grid=4, block=256, args=(gpu.zeros(1024, np.float64), y, 1024))
    except TypeError as error:
        print(error)
"""

LATE = r"""import time
import numpy as np
import gpud_client as gc

with gc.connect() as gpu:           # without reconnect=True
    saxpy = gpu.kernel(open("saxpy.cu").read(), "saxpy")
    x = gpu.array(np.ones(256, np.float32))
    while not open("gpud.toml").read().endswith("# restarted\n"):
        time.sleep(0.1)
    try:
        saxpy.submit(1, 256, (np.float32(2), x, x, np.int32(256)))
    except gc.ConnectionLost as error:
        print(error)
"""

SLOW = r"""extern "C" __global__ void slow(float* x) {
    if (threadIdx.x == 0 && blockIdx.x % 1000 == 0) printf("block %d is done\n", blockIdx.x);
    float v = 0;
    for (int i = 0; i < 100000; ++i) v = v * 0.5f + 1;
    if (threadIdx.x == 0) x[blockIdx.x % 64] = v;
}
"""

NOTEBOOK = r"""import numpy as np
import gpud_client as gc

with gc.connect() as gpu:
    saxpy = gpu.kernel(open("saxpy.cu").read(), "saxpy")
    x = gpu.array(np.ones(256, np.float32))
    job = saxpy.submit(1, 256, (np.float32(2), x, x, np.int32(256)))
    job.result()
    for shown in (saxpy, x, job):
        print(shown, shown._repr_html_(), sep="\n")
"""

ARRAYS = r"""import numpy as np
import gpud_client as gc

with gc.connect() as gpu:
    x = gpu.array(np.arange(6, dtype=np.float32).reshape(2, 3))
    same = np.asarray(x)            # a view, by __array_interface__
    same *= 10
    print(x.get())
    print(np.from_dlpack(x)[1])     # and by DLPack
    print(repr(x))
"""

PROGRAMS = {
    "service.py": SERVICE,
    "train.py": TRAIN,
    "saxpy.cu": WRONG,
    "mistakes.py": MISTAKES,
    "arrays.py": ARRAYS,
    "displays.py": NOTEBOOK,
    "blur.cu": BLUR,
    "checked.py": CHECKED,
    "late.py": LATE,
    "slow.cu": SLOW,
}
"""Their texts, by the names of their files."""
