// MaxUnpool: elements go where indices say. Free of torch headers.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels.h"

namespace onnxpool::cpu {

// An index that names no element of `whole`, if there is one.
std::optional<int64_t> find_index_outside(const Unpooling& call);

// whole = 0; whole[indices[i]] = pooled[i] for every i in row-major order: of duplicates the last wins.
void unpool(const Unpooling& call);

// pooled[i] = whole[indices[i]] if element i is the one that won its place, otherwise 0.
void unpool_backward(const Unpooling& call);

}  // namespace onnxpool::cpu
