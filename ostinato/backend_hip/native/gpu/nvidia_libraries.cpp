// NVIDIA's run-time compiler and vendor GEMM; both also come as Python packages.
#include <dlfcn.h>

#include "library.h"
#include "nvidia.h"

namespace ost::gpu {

namespace {

nvidia::CompilerFunctions rtc;
nvidia::BlasFunctions lt;
const std::vector<std::string> kVersions = {".13", ".12", ""};
constexpr int kInvalidValue = 7;

int description_create(GemmDescription* description, ComputeType compute, DataType scale) {
    const int numbers[] = {nvidia::kComputeF32, nvidia::kComputeF32FastTf32, nvidia::kComputeI32};
    return lt.cublasLtMatmulDescCreate(description, numbers[static_cast<int>(compute)], scale);
}

int description_set(GemmDescription description, GemmAttribute attribute, uint64_t value) {
    const auto number = static_cast<uint32_t>(value);
    switch (attribute) {
        case GemmAttribute::kTransposeA:
            return lt.cublasLtMatmulDescSetAttribute(description, nvidia::kDescriptionTransposeA, &number, 4);
        case GemmAttribute::kTransposeB:
            return lt.cublasLtMatmulDescSetAttribute(description, nvidia::kDescriptionTransposeB, &number, 4);
        case GemmAttribute::kEpilogue:
            return lt.cublasLtMatmulDescSetAttribute(description, nvidia::kDescriptionEpilogue, &number, 4);
        case GemmAttribute::kBias:
            return lt.cublasLtMatmulDescSetAttribute(description, nvidia::kDescriptionBias, &value, 8);
        case GemmAttribute::kBiasType:
            return lt.cublasLtMatmulDescSetAttribute(description, nvidia::kDescriptionBiasType, &number, 4);
    }
    return kInvalidValue;
}

int layout_set(MatrixLayout layout, LayoutAttribute attribute, int64_t value) {
    if (attribute == LayoutAttribute::kBatchStride) {
        return lt.cublasLtMatrixLayoutSetAttribute(layout, nvidia::kLayoutBatchStride, &value, 8);
    }
    const auto count = static_cast<int32_t>(value);
    return lt.cublasLtMatrixLayoutSetAttribute(layout, nvidia::kLayoutBatchCount, &count, 4);
}

int choices(Blas blas, GemmDescription description, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d,
            size_t workspace_limit, int wanted, GemmChoice* list, int* found) {
    *found = 0;
    nvidia::GemmPreference preference = nullptr;
    int status = lt.cublasLtMatmulPreferenceCreate(&preference);
    if (status != 0) return status;
    const uint64_t limit = workspace_limit;
    std::vector<nvidia::GemmHeuristic> results(static_cast<size_t>(wanted));
    status = lt.cublasLtMatmulPreferenceSetAttribute(preference, nvidia::kPreferenceWorkspace, &limit, sizeof limit);
    if (status == 0) {
        int returned = 0;
        status = lt.cublasLtMatmulAlgoGetHeuristic(blas, description, a, b, c, d, preference, wanted, results.data(),
                                                   &returned);
        for (int i = 0; status == 0 && i < returned; ++i) {
            const nvidia::GemmHeuristic& result = results[static_cast<size_t>(i)];
            if (result.state != 0) continue;
            GemmChoice& choice = list[(*found)++];
            choice.workspace_bytes = result.workspace_bytes;
            choice.waves = result.waves;
            static_assert(sizeof choice.algorithm == sizeof result.algorithm, "an algorithm fits");
            __builtin_memcpy(choice.algorithm, &result.algorithm, sizeof result.algorithm);
        }
    }
    lt.cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

int matmul(Blas blas, GemmDescription description, const void* alpha, const void* a, MatrixLayout a_layout,
           const void* b, MatrixLayout b_layout, const void* beta, const void* c, MatrixLayout c_layout, void* d,
           MatrixLayout d_layout, const GemmChoice* choice, void* workspace, size_t workspace_bytes, Stream stream) {
    nvidia::GemmAlgorithm algorithm;
    __builtin_memcpy(&algorithm, choice->algorithm, sizeof algorithm);
    return lt.cublasLtMatmul(blas, description, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                             &algorithm, workspace, workspace_bytes, stream);
}

}  // namespace

// The compiler opens its builtins by name alone while it compiles, which finds them only where they are loaded already
// or where the system looks: those beside it are loaded with it.
void open_nvidia_compiler(CompilerApi& api, std::vector<LibraryReport>& reports, const Search& search) {
    LibraryReport report;
    report.role = "compiler";
    const Library library("libnvrtc", search, kVersions, report);
    if (library.opened()) {
        for (const std::string& file : library_files(library.folder(), "libnvrtc-builtins")) {
            dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
        }
    }
#define OST_LOAD(name, result, parameters) \
    rtc.name = reinterpret_cast<decltype(rtc.name)>(library.required(#name, report));
    OST_CUDA_COMPILER(OST_LOAD)
#undef OST_LOAD
    if (report.finding == Finding::kFound) {
        api = {rtc.nvrtcVersion,        rtc.nvrtcGetErrorString,    rtc.nvrtcCreateProgram,
               rtc.nvrtcCompileProgram, rtc.nvrtcGetProgramLogSize, rtc.nvrtcGetProgramLog,
               rtc.nvrtcGetCUBINSize,   rtc.nvrtcGetCUBIN,          rtc.nvrtcDestroyProgram};
        int major = 0, minor = 0;
        if (rtc.nvrtcVersion(&major, &minor) == 0) report.version = std::to_string(major) + "." + std::to_string(minor);
    }
    reports.push_back(report);
}

void open_nvidia_blas(BlasApi& api, std::vector<LibraryReport>& reports, const Search& search) {
    LibraryReport report;
    report.role = "blas";
    const Library library("libcublasLt", search, kVersions, report);
#define OST_LOAD(name, result, parameters) \
    lt.name = reinterpret_cast<decltype(lt.name)>(library.required(#name, report));
    OST_CUDA_BLAS(OST_LOAD)
#undef OST_LOAD
    if (report.finding == Finding::kFound) {
        api = {lt.cublasLtGetStatusString,
               lt.cublasLtGetVersion,
               lt.cublasLtCreate,
               lt.cublasLtDestroy,
               description_create,
               lt.cublasLtMatmulDescDestroy,
               description_set,
               lt.cublasLtMatrixLayoutCreate,
               lt.cublasLtMatrixLayoutDestroy,
               layout_set,
               choices,
               matmul};
        const size_t version = lt.cublasLtGetVersion();  // 130200: 13.2.0; 120905: 12.9.5
        report.version = std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
                         std::to_string(version % 100);
    }
    reports.push_back(report);
}

}  // namespace ost::gpu
