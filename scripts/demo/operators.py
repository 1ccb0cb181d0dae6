"""The three operators that the demo tunes."""

from tvm import auto_scheduler, te, tir, topi


@auto_scheduler.register_workload
def matmul_relu(n, k, m):
    a = te.placeholder((n, k), name="A")
    b = te.placeholder((k, m), name="B")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    relu = te.compute((n, m), lambda i, j: te.max(c[i, j], tir.const(0, "float32")), name="relu")
    return [a, b, relu]


@auto_scheduler.register_workload
def conv2d_nhwc_bias_relu(height, width, channels, filters):
    data = te.placeholder((1, height, width, channels), name="data")
    kernel = te.placeholder((3, 3, channels, filters), name="kernel")
    bias = te.placeholder((1, 1, 1, filters), name="bias")
    conv = topi.nn.conv2d_nhwc(data, kernel, stride=1, padding=1, dilation=1, out_dtype="float32")
    return [data, kernel, bias, topi.nn.relu(topi.add(conv, bias))]


@auto_scheduler.register_workload
def softmax(rows, columns):
    a = te.placeholder((rows, columns), name="A")
    return [a, topi.nn.softmax(a)]


#: name -> (function, arguments)
OPERATORS = {
    "matmul 256x256x256 + relu": (matmul_relu, (256, 256, 256)),
    "conv2d 3x3 NHWC 28x28x64, 64 + bias + relu": (conv2d_nhwc_bias_relu, (28, 28, 64, 64)),
    "softmax 512x1024": (softmax, (512, 1024)),
}
