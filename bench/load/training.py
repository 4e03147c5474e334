"""Training loops for workloads: logistic regression, a perceptron, a convolution net.

Real gradient descent on gpud kernels. Every value is summed in one fixed order by one thread, so
that losses are the same bit for bit, whatever else runs. `Model.reference` does the same with
NumPy.

What persists of a model is its data, its parameters and their momentum; what an iteration needs
beside it are activations and gradients.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MODELS", "SOURCE", "Convolution", "Logistic", "Model", "Perceptron"]

Values = npt.NDArray[np.float32]
ALIGNMENT = 256
RATE, MOMENTUM = np.float32(0.5), np.float32(0.5)
BLOCK = 64

SOURCE = r"""
// c[m][n] = sum over k of a * b, whose elements lie ra, ca and rb, cb apart; 1: c = max(c, 0)
extern "C" __global__ void product(float* c, const float* a, const float* b, int m, int n, int k,
                                   int ra, int ca, int rb, int cb, int relu) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m * n) return;
    int row = i / n, column = i % n;
    float sum = 0;
    for (int j = 0; j < k; ++j) sum += a[row * ra + j * ca] * b[j * rb + column * cb];
    c[i] = relu && sum < 0 ? 0 : sum;
}
// d where the activation was positive, else 0
extern "C" __global__ void through_relu(float* d, const float* activation, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && !(activation[i] > 0)) d[i] = 0;
}
// logistic loss of each sample, and its derivative by z
extern "C" __global__ void logistic(float* loss, float* d, const float* z, const float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float p = 1 / (1 + expf(-z[i]));
    loss[i] = y[i] > 0 ? -logf(p + 1e-12f) : -logf(1 - p + 1e-12f);
    d[i] = (p - y[i]) / n;
}
extern "C" __global__ void total(float* out, const float* values, int n) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += values[i];
    out[0] = sum / n;
}
extern "C" __global__ void descend(float* w, float* v, const float* g, float rate, float momentum,
                                   int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { v[i] = momentum * v[i] - rate * g[i]; w[i] += v[i]; }
}
// activation[s][f][x][y] = max(0, 3 x 3 filter f over image s); 14 x 14 of 16 x 16
extern "C" __global__ void convolve(float* out, const float* image, const float* filter, int n,
                                    int filters) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * filters * 196) return;
    int at = i % 196, f = i / 196 % filters, s = i / 196 / filters;
    float sum = 0;
    for (int x = 0; x < 3; ++x)
        for (int y = 0; y < 3; ++y)
            sum += image[s * 256 + (at / 14 + x) * 16 + at % 14 + y] * filter[f * 9 + x * 3 + y];
    out[i] = sum > 0 ? sum : 0;
}
extern "C" __global__ void mean(float* out, const float* activation, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int j = 0; j < 196; ++j) sum += activation[i * 196 + j];
    out[i] = sum / 196;
}
extern "C" __global__ void spread(float* d, const float* activation, const float* pooled, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) d[i] = activation[i] > 0 ? pooled[i / 196] / 196 : 0;
}
extern "C" __global__ void filter_gradient(float* g, const float* d, const float* image, int n,
                                           int filters) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= filters * 9) return;
    int f = i / 9, x = i % 9 / 3, y = i % 3;
    float sum = 0;
    for (int s = 0; s < n; ++s)
        for (int at = 0; at < 196; ++at)
            sum += d[(s * filters + f) * 196 + at]
                 * image[s * 256 + (at / 14 + x) * 16 + at % 14 + y];
    g[i] = sum;
}
"""


class Model:
    """A model with its data: ``samples`` of ``features`` numbers in each batch, two classes.

    Args:
        samples: of a batch; activations grow with them.
        seed: of the data and the first parameters.
        batches: how many there are; each iteration uses the next one.

    Attributes:
        name: for tables.
        features: of a sample.
        batches: models that have the data of one batch each; the first is this one.
    """

    name = ""
    features = 64

    def __init__(self, samples: int, seed: int, batches: int = 1) -> None:
        chance = np.random.default_rng(seed)
        self.samples = samples
        self.x = chance.standard_normal((samples, self.features), np.float32)
        self.y = (self.x[:, :16].sum(1) + self.x[:, 40] ** 2 > 1).astype(np.float32)
        self.x += 0.2 * (self.y[:, None] - np.float32(0.5))  # brighter images for one class
        self._seed = seed
        others = [type(self)(samples, seed + 1000 * number) for number in range(1, batches)]
        self.batches: list[Model] = [self, *others]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The extents of the parameters."""
        raise NotImplementedError

    @property
    def scratch(self) -> dict[str, tuple[int, ...]]:
        """The extents of what an iteration needs beside gradients, loss and predictions."""
        raise NotImplementedError

    @property
    def fixed(self) -> dict[str, tuple[int, ...]]:
        """The extents of parameters that are not trained."""
        return {}

    def first(self) -> dict[str, Values]:
        """The parameters before the first iteration, the same for equal seeds."""
        chance = np.random.default_rng(self._seed + 1)
        return {
            name: (0.1 * chance.standard_normal(shape)).astype(np.float32)
            for name, shape in {**self.fixed, **self.shapes}.items()
        }

    @property
    def persistent_bytes(self) -> int:
        """What lives across iterations: data, parameters, momentum."""
        parameters = [*self.fixed.values(), *self.shapes.values(), *self.shapes.values()]
        data = [array.shape for batch in self.batches for array in (batch.x, batch.y)]
        return _bytes([*data, *parameters])

    @property
    def temporary_bytes(self) -> int:
        """What lives within an iteration."""
        n = (self.samples,)
        return _bytes([n, n, n, (1,), *self.shapes.values(), *self.scratch.values()])

    def losses(
        self,
        gpu: Any,
        work: Any,
        iterations: int,
        *,
        swapped_s: float | None = None,
        **shares: Any,
    ) -> list[float]:
        """Train in the iterations of a workload; returns the mean loss before each step.

        A first iteration writes what persists, if that is to stay.

        Args:
            gpu: the session.
            work: its workload.
            iterations: how many.
            swapped_s: None: all that persists stays. Or as if nothing could: each iteration of the
                workload has steps for so long, and makes all of it in temporary memory from copies
                that the program keeps, and copies it out afterwards.
            **shares: of the jobs, as for `Session.sequence`.
        """
        call = _caller(gpu.module(SOURCE, device=work.device))
        values = [array for batch in self.batches for array in (batch.x, batch.y)]
        values += self.first().values()
        values += [np.zeros(shape, np.float32) for shape in self.shapes.values()]
        arrays: list[Any] = []
        if swapped_s is None:
            with work.iteration():
                arrays = [work.array(one) for one in values]
        found: list[float] = []
        while len(found) < iterations:
            with work.iteration() as turn:
                until = time.monotonic() + (swapped_s or 0)
                if swapped_s is not None:
                    arrays = [turn.array(one) for one in values]
                data, weights, momenta = self._named(arrays)
                while True:
                    batch = data[len(found) % len(data)]
                    launches, loss = self._step(call, turn, batch, weights, momenta)
                    gpu.sequence(launches, **shares)
                    found.append(float(loss.get()[0]))
                    del launches, loss  # whose memory the next step uses
                    if len(found) == iterations or time.monotonic() >= until:
                        break
                if swapped_s is not None:
                    values = [array.get() for array in arrays]
        return found

    def _named(self, arrays: list[Any]) -> tuple[list[tuple[Any, Any]], Any, Any]:
        """Return what persists: data by batch, and weights and momenta by name."""
        rest = iter(arrays)
        data = [(next(rest), next(rest)) for _ in self.batches]
        weights = {name: next(rest) for name in {**self.fixed, **self.shapes}}
        momenta = {name: next(rest) for name in self.shapes}
        return data, weights, momenta

    def _step(
        self, call: Any, turn: Any, data: tuple[Any, Any], weights: Any, momenta: Any
    ) -> tuple[list[Any], Any]:
        """Return the launches of one step, and the array that gets the loss."""
        (x, y), n = data, self.samples
        made = {name: turn.empty(shape, np.float32) for name, shape in self.scratch.items()}
        grads = {name: turn.empty(shape, np.float32) for name, shape in self.shapes.items()}
        z, d, each = (turn.empty(n, np.float32) for _ in range(3))
        loss = turn.empty(1, np.float32)
        launches = [
            *self.forward(call, x, weights, made, z),
            call("logistic", n, each, d, z, y, n),
            call("total", 1, loss, each, n, block=1),
            *self.backward(call, x, weights, made, d, grads),
        ]
        for name, gradient in grads.items():
            size = gradient.size
            arrays = weights[name], momenta[name], gradient
            launches.append(call("descend", size, *arrays, RATE, MOMENTUM, size))
        return launches, loss

    @abstractmethod
    def forward(
        self, call: Callable[..., Any], x: Any, weights: Any, made: Any, z: Any
    ) -> Sequence[Any]:
        """The launches that compute the predictions ``z``."""

    @abstractmethod
    def backward(
        self, call: Callable[..., Any], x: Any, weights: Any, made: Any, d: Any, grads: Any
    ) -> Sequence[Any]:
        """The launches that compute the gradients from ``d``, the derivatives by ``z``."""

    def reference(self, iterations: int) -> list[float]:
        """Train with NumPy in double precision; returns the losses."""
        weights = {name: values.astype(float) for name, values in self.first().items()}
        momenta = {name: np.zeros(shape) for name, shape in self.shapes.items()}
        found = []
        for number in range(iterations):
            batch = self.batches[number % len(self.batches)]
            z, grads_of = batch.numpy_step(weights)
            p = 1 / (1 + np.exp(-z))
            each = np.where(batch.y > 0, -np.log(p + 1e-12), -np.log(1 - p + 1e-12))
            found.append(float(each.mean()))
            for name, gradient in grads_of((p - batch.y) / self.samples).items():
                momenta[name] = 0.5 * momenta[name] - 0.5 * gradient
                weights[name] += momenta[name]
        return found

    @abstractmethod
    def numpy_step(self, weights: Any) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
        """The predictions, and a function from their derivatives to the gradients."""


class Logistic(Model):
    """Logistic regression on 192 fixed features of the sample, which are computed each time."""

    name = "logistic regression"
    wide = 192

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"w": (self.wide, 1)}

    @property
    def fixed(self) -> dict[str, tuple[int, ...]]:
        return {"r": (self.features, self.wide)}

    @property
    def scratch(self) -> dict[str, tuple[int, ...]]:
        return {"phi": (self.samples, self.wide)}

    def forward(self, call: Any, x: Any, weights: Any, made: Any, z: Any) -> Sequence[Any]:
        n, k, w = self.samples, self.features, self.wide
        return [
            call("product", n * w, made["phi"], x, weights["r"], n, w, k, k, 1, w, 1, 1),
            call("product", n, z, made["phi"], weights["w"], n, 1, w, w, 1, 1, 1, 0),
        ]

    def backward(
        self, call: Any, x: Any, weights: Any, made: Any, d: Any, grads: Any
    ) -> Sequence[Any]:
        n, w = self.samples, self.wide
        return [call("product", w, grads["w"], made["phi"], d, w, 1, n, 1, w, 1, 1, 0)]

    def numpy_step(self, weights: Any) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
        phi = np.maximum(self.x @ weights["r"], 0)
        return (phi @ weights["w"])[:, 0], lambda d: {"w": phi.T @ d[:, None]}


class Perceptron(Model):
    """One hidden layer of 96 units."""

    name = "perceptron"
    hidden = 96

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"w1": (self.features, self.hidden), "w2": (self.hidden, 1)}

    @property
    def scratch(self) -> dict[str, tuple[int, ...]]:
        return {"h": (self.samples, self.hidden), "dh": (self.samples, self.hidden)}

    def forward(self, call: Any, x: Any, weights: Any, made: Any, z: Any) -> Sequence[Any]:
        n, h, k = self.samples, self.hidden, self.features
        return [
            call("product", n * h, made["h"], x, weights["w1"], n, h, k, k, 1, h, 1, 1),
            call("product", n, z, made["h"], weights["w2"], n, 1, h, h, 1, 1, 1, 0),
        ]

    def backward(
        self, call: Any, x: Any, weights: Any, made: Any, d: Any, grads: Any
    ) -> Sequence[Any]:
        n, h, k = self.samples, self.hidden, self.features
        return [
            call("product", h, grads["w2"], made["h"], d, h, 1, n, 1, h, 1, 1, 0),
            call("product", n * h, made["dh"], d, weights["w2"], n, h, 1, 1, 1, 1, 1, 0),
            call("through_relu", n * h, made["dh"], made["h"], n * h),
            call("product", k * h, grads["w1"], x, made["dh"], k, h, n, 1, k, h, 1, 0),
        ]

    def numpy_step(self, weights: Any) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
        h = np.maximum(self.x @ weights["w1"], 0)

        def gradients(d: Any) -> dict[str, Any]:
            dh = d[:, None] @ weights["w2"].T * (h > 0)
            return {"w1": self.x.T @ dh, "w2": h.T @ d[:, None]}

        return (h @ weights["w2"])[:, 0], gradients


class Convolution(Model):
    """Four filters of 3 x 3 over 16 x 16 images, their means, one output."""

    name = "convolution net"
    features = 256
    filters = 4

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"f": (self.filters, 9), "w": (self.filters, 1)}

    @property
    def scratch(self) -> dict[str, tuple[int, ...]]:
        n, f = self.samples, self.filters
        return {"a": (n, f, 196), "da": (n, f, 196), "pooled": (n, f), "dpooled": (n, f)}

    def forward(self, call: Any, x: Any, weights: Any, made: Any, z: Any) -> Sequence[Any]:
        n, f = self.samples, self.filters
        return [
            call("convolve", n * f * 196, made["a"], x, weights["f"], n, f),
            call("mean", n * f, made["pooled"], made["a"], n * f),
            call("product", n, z, made["pooled"], weights["w"], n, 1, f, f, 1, 1, 1, 0),
        ]

    def backward(
        self, call: Any, x: Any, weights: Any, made: Any, d: Any, grads: Any
    ) -> Sequence[Any]:
        n, f = self.samples, self.filters
        size = n * f * 196
        return [
            call("product", f, grads["w"], made["pooled"], d, f, 1, n, 1, f, 1, 1, 0),
            call("product", n * f, made["dpooled"], d, weights["w"], n, f, 1, 1, 1, 1, 1, 0),
            call("spread", size, made["da"], made["a"], made["dpooled"], size),
            call("filter_gradient", f * 9, grads["f"], made["da"], x, n, f),
        ]

    def numpy_step(self, weights: Any) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
        images = self.x.reshape(-1, 16, 16)
        windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2))
        windows = windows.reshape(self.samples, 196, 9)
        a = np.maximum(windows @ weights["f"].T, 0)  # samples, places, filters
        pooled = a.mean(1)

        def gradients(d: Any) -> dict[str, Any]:
            da = (d[:, None] @ weights["w"].T / 196)[:, None, :] * (a > 0)
            return {"f": np.einsum("spf,spk->fk", da, windows), "w": pooled.T @ d[:, None]}

        return (pooled @ weights["w"])[:, 0], gradients


MODELS: tuple[type[Model], ...] = (Logistic, Perceptron, Convolution)


# -- helpers -----------------------------------------------------------------------------------


def _bytes(shapes: Sequence[Sequence[int]]) -> int:
    """Bytes of arrays of float32, as they are placed in a workload's memory."""
    sizes = (4 * int(np.prod(shape)) for shape in shapes)
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


def _caller(module: Any) -> Callable[..., Any]:
    def call(name: str, threads: int, *args: Any, block: int = BLOCK) -> Any:
        return module.kernel(name).call(-(-threads // block), block, args)

    return call
