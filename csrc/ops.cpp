// The schema of every operator of the package. Each has two overloads: the default one, whose arguments are the ONNX
// attributes, and one for eager mode, with the attributes as one text (attributes_text.h).
#include "tensor.h"

namespace {

template <class Library>
void define(Library& library, const std::string& name, const std::string& tensors, const std::string& attributes,
            const std::string& results = "Tensor") {
    const std::string separator = attributes.empty() ? "" : ", ";
    library.def((name + "(" + tensors + separator + attributes + ") -> " + results).c_str());
    library.def((name + ".eager(" + tensors + ", str attributes) -> " + results).c_str());
}

}  // namespace

ONNXPOOL_LIBRARY(library) {
    const std::string window = "int[] kernel_shape, *, str auto_pad=\"NOTSET\", int ceil_mode=0, ";
    const std::string average =
        window + "int count_include_pad=0, int[]? dilations=None, int[]? pads=None, int[]? strides=None";
    const std::string lp = window + "int[]? dilations=None, float p=2.0, int[]? pads=None, int[]? strides=None";
    const std::string max =
        window + "int[]? dilations=None, int[]? pads=None, int storage_order=0, int[]? strides=None";
    const std::string unpool =
        "int[] kernel_shape, *, SymInt[]? output_shape=None, int[]? pads=None, int[]? strides=None";
    const std::string quantized = "Tensor X, Tensor x_scale, Tensor x_zero_point, Tensor y_scale, Tensor y_zero_point";
    const std::string with_indices = "(Tensor Y, Tensor Indices)";

    define(library, "average_pool", "Tensor X", average);
    define(library, "average_pool_backward", "Tensor grad_Y, Tensor X", average);
    define(library, "lp_pool", "Tensor X", lp);
    define(library, "lp_pool_backward", "Tensor grad_Y, Tensor X, Tensor Y", lp);
    define(library, "max_pool", "Tensor X", max);
    define(library, "max_pool_with_indices", "Tensor X", max, with_indices);
    define(library, "max_pool_backward", "Tensor grad_Y, Tensor X, Tensor Indices", max);
    define(library, "max_unpool", "Tensor X, Tensor I", unpool);
    define(library, "max_unpool_backward", "Tensor grad_Y, Tensor X, Tensor I", unpool);
    define(library, "global_average_pool", "Tensor X", "");
    define(library, "global_average_pool_backward", "Tensor grad_Y, Tensor X", "");
    define(library, "global_lp_pool", "Tensor X", "*, float p=2.0");
    define(library, "global_lp_pool_backward", "Tensor grad_Y, Tensor X, Tensor Y", "*, float p=2.0");
    define(library, "global_max_pool", "Tensor X", "");
    define(library, "global_max_pool_with_indices", "Tensor X", "", with_indices);
    define(library, "global_max_pool_backward", "Tensor grad_Y, Tensor X, Tensor Indices", "");
    define(library, "qlinear_average_pool", quantized,
           window + "int channels_last=0, int count_include_pad=0, int[]? pads=None, int[]? strides=None");
    define(library, "qlinear_global_average_pool", quantized, "*, int channels_last=0");
}
