// NVIDIA's run-time compiler and vendor GEMM; both also come as Python packages.
#include <dlfcn.h>

#include <array>

#include "library.h"
#include "nvidia.h"
#include "vendor_blas.h"

namespace ost::gpu {

namespace {

nvidia::CompilerFunctions rtc;
nvidia::BlasFunctions lt;
const std::vector<std::string> kVersions = {".13", ".12", ""};

int blas_version(Blas, int* version) {
    *version = static_cast<int>(lt.cublasLtGetVersion());
    return 0;
}

struct Vendor {
    using Algorithm = nvidia::GemmAlgorithm;
    using Heuristic = nvidia::GemmHeuristic;
    using Preference = nvidia::GemmPreference;
    static constexpr int kComputes[] = {nvidia::kComputeF32, nvidia::kComputeF32FastTf32, nvidia::kComputeI32};
    static constexpr int kDescription[] = {nvidia::kDescriptionTransposeA, nvidia::kDescriptionTransposeB,
                                           nvidia::kDescriptionEpilogue, nvidia::kDescriptionBias,
                                           nvidia::kDescriptionBiasType};
    static constexpr int kLayout[] = {nvidia::kLayoutBatchCount, nvidia::kLayoutBatchStride};
    static constexpr uint32_t kOperations[] = {nvidia::kOperationNone, nvidia::kOperationTranspose};
    static constexpr int kPreferenceWorkspace = nvidia::kPreferenceWorkspace;
    static constexpr std::array<int, 4> kPreferenceAlignments = {
        nvidia::kPreferenceAlignmentA, nvidia::kPreferenceAlignmentB, nvidia::kPreferenceAlignmentC,
        nvidia::kPreferenceAlignmentD};
    static constexpr int kNotSupported = 15;
};
using Adaptor = BlasAdaptor<Vendor>;

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
        Adaptor::calls = {lt.cublasLtMatmulDescCreate,
                          lt.cublasLtMatmulDescSetAttribute,
                          lt.cublasLtMatrixLayoutSetAttribute,
                          lt.cublasLtMatmulPreferenceCreate,
                          lt.cublasLtMatmulPreferenceDestroy,
                          lt.cublasLtMatmulPreferenceSetAttribute,
                          lt.cublasLtMatmulAlgoGetHeuristic,
                          lt.cublasLtMatmul,
                          lt.cublasLtMatmulAlgoCheck};
        api = {lt.cublasLtGetStatusString,
               blas_version,
               lt.cublasLtCreate,
               lt.cublasLtDestroy,
               Adaptor::description_create,
               lt.cublasLtMatmulDescDestroy,
               Adaptor::description_set,
               lt.cublasLtMatrixLayoutCreate,
               lt.cublasLtMatrixLayoutDestroy,
               Adaptor::layout_set,
               Adaptor::choices,
               Adaptor::check,
               Adaptor::matmul};
        const size_t version = lt.cublasLtGetVersion();  // 130200: 13.2.0; 120905: 12.9.5
        report.version = std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
                         std::to_string(version % 100);
    }
    reports.push_back(report);
}

}  // namespace ost::gpu
