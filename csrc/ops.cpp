// The schema of every operator of the package: its arguments are the ONNX attributes.
#include "tensor.h"

#define ONNXPOOL_WINDOW_BEFORE_P ", int[] kernel_shape, *, str auto_pad=\"NOTSET\", int ceil_mode=0"
#define ONNXPOOL_AVERAGE     \
    ONNXPOOL_WINDOW_BEFORE_P \
    ", int count_include_pad=0, int[]? dilations=None, int[]? pads=None, int[]? strides=None)"
#define ONNXPOOL_LP          \
    ONNXPOOL_WINDOW_BEFORE_P \
    ", int[]? dilations=None, float p=2.0, int[]? pads=None, int[]? strides=None)"
#define ONNXPOOL_MAX         \
    ONNXPOOL_WINDOW_BEFORE_P \
    ", int[]? dilations=None, int[]? pads=None, int storage_order=0, int[]? strides=None)"
#define ONNXPOOL_UNPOOL ", int[] kernel_shape, *, int[]? output_shape=None, int[]? pads=None, int[]? strides=None)"
#define ONNXPOOL_QUANTIZED "(Tensor X, Tensor x_scale, Tensor x_zero_point, Tensor y_scale, Tensor y_zero_point"

ONNXPOOL_LIBRARY(library) {
    library.def("average_pool(Tensor X" ONNXPOOL_AVERAGE " -> Tensor");
    library.def("average_pool_backward(Tensor grad_Y, Tensor X" ONNXPOOL_AVERAGE " -> Tensor");
    library.def("lp_pool(Tensor X" ONNXPOOL_LP " -> Tensor");
    library.def("lp_pool_backward(Tensor grad_Y, Tensor X, Tensor Y" ONNXPOOL_LP " -> Tensor");
    library.def("max_pool(Tensor X" ONNXPOOL_MAX " -> Tensor");
    library.def("max_pool_with_indices(Tensor X" ONNXPOOL_MAX " -> (Tensor Y, Tensor Indices)");
    library.def("max_pool_backward(Tensor grad_Y, Tensor X, Tensor Indices" ONNXPOOL_MAX " -> Tensor");
    library.def("max_unpool(Tensor X, Tensor I" ONNXPOOL_UNPOOL " -> Tensor");
    library.def("max_unpool_backward(Tensor grad_Y, Tensor X, Tensor I" ONNXPOOL_UNPOOL " -> Tensor");
    library.def("global_average_pool(Tensor X) -> Tensor");
    library.def("global_average_pool_backward(Tensor grad_Y, Tensor X) -> Tensor");
    library.def("global_lp_pool(Tensor X, *, float p=2.0) -> Tensor");
    library.def("global_lp_pool_backward(Tensor grad_Y, Tensor X, Tensor Y, *, float p=2.0) -> Tensor");
    library.def("global_max_pool(Tensor X) -> Tensor");
    library.def("global_max_pool_with_indices(Tensor X) -> (Tensor Y, Tensor Indices)");
    library.def("global_max_pool_backward(Tensor grad_Y, Tensor X, Tensor Indices) -> Tensor");
    library.def("qlinear_average_pool" ONNXPOOL_QUANTIZED
                ", int[] kernel_shape, *, str auto_pad=\"NOTSET\", int ceil_mode=0, int channels_last=0, "
                "int count_include_pad=0, int[]? pads=None, int[]? strides=None) -> Tensor");
    library.def("qlinear_global_average_pool" ONNXPOOL_QUANTIZED ", *, int channels_last=0) -> Tensor");
}
