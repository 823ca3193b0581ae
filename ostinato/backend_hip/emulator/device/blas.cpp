// The vendor's GEMM by plain loops over column-major matrices, fp32 sums. Three algorithms that give other bits: the
// sum in order; in two halves that a second kernel adds, with a workspace; backwards, with a larger one. A workspace is
// written all over, so that one which is too small or not the caller's own is seen.
#include <cstring>

#include "state.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace emulated {

namespace {

constexpr size_t kWorkspaces[] = {0, 4096, 65536};
constexpr int kAlgorithms = 3;
enum Status { kSuccess = 0, kNotInitialized = 1, kInvalidValue = 3, kExecutionFailed = 5, kNotSupported = 7 };

struct HandleState {
    int device;
};
struct DescriptionState {
    DataType scale = DataType::kF32;
    bool transpose_a = false, transpose_b = false;
    uint32_t epilogue = kEpilogueNone;
    const void* bias = nullptr;
    DataType bias_type = DataType::kF32;
};
struct LayoutState {
    DataType type = DataType::kF32;
    uint64_t rows = 0, columns = 0;
    int64_t leading = 0;
    int32_t batches = 1;
    int64_t batch_stride = 0;
};
struct PreferenceState {
    uint64_t workspace = 0;
};

float from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

size_t size_of(DataType type) {
    return type == DataType::kF32 || type == DataType::kI32 ? 4 : type == DataType::kI8 ? 1 : 2;
}

float load(const void* memory, DataType type, size_t i) {
    if (type == DataType::kF32) return static_cast<const float*>(memory)[i];
    const uint16_t bits = static_cast<const uint16_t*>(memory)[i];
    if (type == DataType::kBf16) return from_bits(uint32_t{bits} << 16);
    _Float16 half;
    std::memcpy(&half, &bits, sizeof half);
    return static_cast<float>(half);
}

void store(void* memory, DataType type, size_t i, float value) {
    if (type == DataType::kF32) {
        static_cast<float*>(memory)[i] = value;
    } else if (type == DataType::kBf16) {
        const uint32_t bits = to_bits(value);
        const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
        static_cast<uint16_t*>(memory)[i] = static_cast<uint16_t>((value != value ? bits | 0x400000 : rounded) >> 16);
    } else {
        const auto half = static_cast<_Float16>(value);
        std::memcpy(static_cast<char*>(memory) + 2 * i, &half, sizeof half);
    }
}

struct Problem {
    DescriptionState description;
    LayoutState a, b, c, d;
    float alpha, beta;
    const void *a_memory, *b_memory, *c_memory;
    void* d_memory;
    int algorithm;
    void* workspace;
    int device;
};

bool inside(const void* memory, const LayoutState& layout, int device) {
    const size_t last = static_cast<size_t>(layout.batches - 1) * static_cast<size_t>(layout.batch_stride) +
                        (layout.columns - 1) * static_cast<size_t>(layout.leading) + layout.rows;
    return in_live_memory(memory, last * size_of(layout.type), device);
}

Error multiply(const Problem& p) {
    ++state().calls["kernels"];
    const Error injection = injected("kernel");
    if (injection != Error::kSuccess) return injection;
    const size_t workspace = kWorkspaces[p.algorithm];
    if (!inside(p.a_memory, p.a, p.device) || !inside(p.b_memory, p.b, p.device) ||
        !inside(p.d_memory, p.d, p.device) || (p.beta != 0 && !inside(p.c_memory, p.c, p.device)) ||
        (workspace != 0 && !in_live_memory(p.workspace, workspace, p.device))) {
        report_problem("a matrix product reaches outside of live memory");
        return Error::kIllegalAddress;
    }
    if (workspace != 0) std::memset(p.workspace, 0xa7, workspace);
    state().ticks += state().slow[p.algorithm];
    const uint64_t whole = p.description.transpose_a ? p.a.rows : p.a.columns;
    const uint64_t k = whole - (p.algorithm == state().spoilt ? 1 : 0);
    for (int32_t batch = 0; batch < p.d.batches; ++batch) {
        const auto at = [batch](const LayoutState& layout, uint64_t row, uint64_t column) {
            return static_cast<size_t>(batch * layout.batch_stride) + column * static_cast<size_t>(layout.leading) +
                   row;
        };
        for (uint64_t column = 0; column < p.d.columns; ++column) {
            for (uint64_t row = 0; row < p.d.rows; ++row) {
                float sums[2] = {0, 0};
                for (uint64_t i = 0; i < k; ++i) {
                    const uint64_t inner = p.algorithm == 2 ? k - 1 - i : i;
                    const size_t a = p.description.transpose_a ? at(p.a, inner, row) : at(p.a, row, inner);
                    const size_t b = p.description.transpose_b ? at(p.b, column, inner) : at(p.b, inner, column);
                    sums[p.algorithm == 1 && i >= k / 2] +=
                        load(p.a_memory, p.a.type, a) * load(p.b_memory, p.b.type, b);
                }
                float value = p.alpha * (sums[0] + sums[1]);
                if (p.beta != 0) value += p.beta * load(p.c_memory, p.c.type, at(p.c, row, column));
                if ((p.description.epilogue & kEpilogueBias) != 0) {
                    value += load(p.description.bias, p.description.bias_type, row);
                }
                store(p.d_memory, p.d.type, at(p.d, row, column), value);
            }
        }
    }
    return Error::kSuccess;
}

bool fits(const DescriptionState& p, const LayoutState& a, const LayoutState& b, const LayoutState& d) {
    const uint64_t m = p.transpose_a ? a.columns : a.rows, k = p.transpose_a ? a.rows : a.columns;
    const uint64_t n = p.transpose_b ? b.rows : b.columns, other = p.transpose_b ? b.columns : b.rows;
    return m == d.rows && n == d.columns && k == other && a.batches == d.batches && b.batches == d.batches;
}

template <class T, class Handle>
T& of(Handle handle) {
    return *reinterpret_cast<T*>(handle);
}
template <class T, class Handle>
int make(Handle* handle, T value) {
    *handle = reinterpret_cast<Handle>(new T(value));
    return kSuccess;
}
template <class T, class Handle>
int drop(Handle handle) {
    delete reinterpret_cast<T*>(handle);
    return kSuccess;
}

}  // namespace

}  // namespace emulated

namespace ost::gpu {
using namespace emulated;  // NOLINT

EXPORT int ncclGetVersion(int* version) { return *version = 22304, 0; }

EXPORT int hipblasLtGetVersion(Blas, int* version) { return *version = 100000, 0; }

// As the real one does, making a handle allocates: not to be done while a capture is under way.
EXPORT int hipblasLtCreate(Blas* handle) {
    const Call call("hipblasLtCreate");
    if (call.refused() != Error::kSuccess || forbidden_call() != Error::kSuccess) return kNotInitialized;
    ++state().calls["live vendor handles"];
    return make<HandleState>(handle, {current_device});
}

EXPORT int hipblasLtDestroy(Blas handle) {
    const Call call("hipblasLtDestroy");
    --state().calls["live vendor handles"];
    return drop<HandleState>(handle);
}

EXPORT int hipblasLtMatmulDescCreate(GemmDescription* made, int compute, DataType scale) {
    if (compute != amd::kComputeF32 && compute != amd::kComputeF32FastTf32) return kNotSupported;
    DescriptionState description;
    description.scale = scale;
    return make<DescriptionState>(made, description);
}
EXPORT int hipblasLtMatmulDescDestroy(GemmDescription description) { return drop<DescriptionState>(description); }

EXPORT int hipblasLtMatmulDescSetAttribute(GemmDescription handle, int attribute, const void* value, size_t bytes) {
    auto& description = of<DescriptionState>(handle);
    uint64_t number = 0;
    std::memcpy(&number, value, bytes < sizeof number ? bytes : sizeof number);
    const bool operation = attribute == amd::kDescriptionTransposeA || attribute == amd::kDescriptionTransposeB;
    if (operation && number != amd::kOperationNone && number != amd::kOperationTranspose) return kInvalidValue;
    if (attribute == amd::kDescriptionTransposeA) description.transpose_a = number == amd::kOperationTranspose;
    if (attribute == amd::kDescriptionTransposeB) description.transpose_b = number == amd::kOperationTranspose;
    if (attribute == amd::kDescriptionEpilogue) description.epilogue = static_cast<uint32_t>(number);
    if (attribute == amd::kDescriptionBias) description.bias = reinterpret_cast<const void*>(number);
    if (attribute == amd::kDescriptionBiasType) description.bias_type = static_cast<DataType>(number);
    return attribute <= amd::kDescriptionBiasType ? kSuccess : kNotSupported;
}

EXPORT int hipblasLtMatrixLayoutCreate(MatrixLayout* made, DataType type, uint64_t rows, uint64_t columns,
                                       int64_t leading) {
    if (leading < static_cast<int64_t>(rows)) return kInvalidValue;
    return make<LayoutState>(made, {type, rows, columns, leading, 1, 0});
}
EXPORT int hipblasLtMatrixLayoutDestroy(MatrixLayout layout) { return drop<LayoutState>(layout); }

EXPORT int hipblasLtMatrixLayoutSetAttribute(MatrixLayout handle, int attribute, const void* value, size_t bytes) {
    auto& layout = of<LayoutState>(handle);
    int64_t number = 0;
    std::memcpy(&number, value, bytes < sizeof number ? bytes : sizeof number);
    if (attribute == amd::kLayoutBatchCount) layout.batches = static_cast<int32_t>(number);
    if (attribute == amd::kLayoutBatchStride) layout.batch_stride = number;
    return attribute <= amd::kLayoutBatchStride ? kSuccess : kNotSupported;
}

EXPORT int hipblasLtMatmulPreferenceCreate(amd::GemmPreference* made) { return make<PreferenceState>(made, {}); }
EXPORT int hipblasLtMatmulPreferenceDestroy(amd::GemmPreference handle) { return drop<PreferenceState>(handle); }

EXPORT int hipblasLtMatmulPreferenceSetAttribute(amd::GemmPreference handle, int attribute, const void* value, size_t) {
    if (attribute != amd::kPreferenceWorkspace) return kNotSupported;
    std::memcpy(&of<PreferenceState>(handle).workspace, value, sizeof(uint64_t));
    return kSuccess;
}

// The fastest first: the one with the largest workspace that is allowed.
EXPORT int hipblasLtMatmulAlgoGetHeuristic(Blas, GemmDescription description, MatrixLayout a, MatrixLayout b,
                                           MatrixLayout, MatrixLayout d, amd::GemmPreference preference, int wanted,
                                           amd::GemmHeuristic* results, int* found) {
    const Call call("hipblasLtMatmulAlgoGetHeuristic");
    *found = 0;
    if (!fits(of<DescriptionState>(description), of<LayoutState>(a), of<LayoutState>(b), of<LayoutState>(d))) {
        return kInvalidValue;
    }
    for (int i = kAlgorithms - 1; i >= 0 && *found < wanted; --i) {
        if (kWorkspaces[i] > of<PreferenceState>(preference).workspace) continue;
        amd::GemmHeuristic& result = results[(*found)++];
        result = {};
        result.algorithm.data[0] = static_cast<uint8_t>(i);
        result.algorithm.workspace_limit = kWorkspaces[i];
        result.workspace_bytes = kWorkspaces[i];
        result.waves = 1;
    }
    return *found == 0 ? kNotSupported : kSuccess;
}

EXPORT int hipblasLtMatmul(Blas handle, GemmDescription description, const void* alpha, const void* a,
                           MatrixLayout a_layout, const void* b, MatrixLayout b_layout, const void* beta, const void* c,
                           MatrixLayout c_layout, void* d, MatrixLayout d_layout, const amd::GemmAlgorithm* algorithm,
                           void* workspace, size_t workspace_bytes, Stream stream) {
    const Call call("hipblasLtMatmul");
    StreamState* const queue = stream_of(stream);
    if (call.refused() != Error::kSuccess || queue == nullptr) return kExecutionFailed;
    const int chosen = algorithm->data[0];
    if (chosen >= kAlgorithms || workspace_bytes < kWorkspaces[chosen] || handle == nullptr ||
        of<HandleState>(handle).device != queue->device) {
        return kInvalidValue;
    }
    Problem problem = {of<DescriptionState>(description),
                       of<LayoutState>(a_layout),
                       of<LayoutState>(b_layout),
                       of<LayoutState>(c_layout),
                       of<LayoutState>(d_layout),
                       *static_cast<const float*>(alpha),
                       *static_cast<const float*>(beta),
                       a,
                       b,
                       c,
                       d,
                       chosen,
                       workspace,
                       queue->device};
    if (!fits(problem.description, problem.a, problem.b, problem.d)) return kInvalidValue;
    static FunctionState& vendor = *new FunctionState;
    vendor.name = "vendor_gemm";
    for (int part = 0; part < (chosen == 1 ? 2 : 1);
         ++part) {  // the second adds the halves up; the loops did it already
        NodeState node;
        node.type = NodeType::kKernel;
        node.function = &vendor;
        node.grid = node.block = {1, 1, 1};
        node.run = part == 0 ? std::function<Error()>([problem] { return multiply(problem); })
                             : std::function<Error()>([] { return Error::kSuccess; });
        if (submit(*queue, std::move(node)) != Error::kSuccess) return kExecutionFailed;
    }
    return kSuccess;
}

}  // namespace ost::gpu
