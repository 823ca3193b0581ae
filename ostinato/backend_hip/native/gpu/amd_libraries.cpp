// AMD's run-time compiler and vendor GEMM.
#include <array>

#include "amd.h"
#include "library.h"
#include "vendor_blas.h"

namespace ost::gpu {

namespace {

amd::CompilerFunctions rtc;
amd::BlasFunctions lt;

const char* status_text(int status) {  // hipblasStatus_t; the library that knows the names is another one
    static const char* const names[] = {"success",        "not initialized",   "allocation failed",
                                        "invalid value",  "mapping error",     "execution failed",
                                        "internal error", "not supported",     "wrong architecture",
                                        "no handle",      "invalid enumerator"};
    const auto count = static_cast<int>(sizeof names / sizeof *names);
    return status >= 0 && status < count ? names[status] : "unknown status";
}

struct Vendor {
    using Algorithm = amd::GemmAlgorithm;
    using Heuristic = amd::GemmHeuristic;
    using Preference = amd::GemmPreference;
    static constexpr int kComputes[] = {amd::kComputeF32, amd::kComputeF32FastTf32, amd::kComputeI32};
    static constexpr int kDescription[] = {amd::kDescriptionTransposeA, amd::kDescriptionTransposeB,
                                           amd::kDescriptionEpilogue, amd::kDescriptionBias,
                                           amd::kDescriptionBiasType};
    static constexpr int kLayout[] = {amd::kLayoutBatchCount, amd::kLayoutBatchStride};
    static constexpr uint32_t kOperations[] = {amd::kOperationNone, amd::kOperationTranspose};
    static constexpr int kPreferenceWorkspace = amd::kPreferenceWorkspace;
    static constexpr std::array<int, 0> kPreferenceAlignments = {};
    static constexpr int kNotSupported = 7;
};
using Adaptor = BlasAdaptor<Vendor>;

}  // namespace

// Up to ROCm 5 the compiler sits in the runtime itself.
void open_amd_compiler(CompilerApi& api, std::vector<LibraryReport>& reports, const Search& search,
                       const Library& runtime) {
    LibraryReport report;
    report.role = "compiler";
    const Library own("libhiprtc", search, {".7", ".6", ".5", ""}, report);
    const bool in_runtime = !own.opened() && runtime.symbol("hiprtcCreateProgram") != nullptr;
    if (in_runtime) {
        report = reports.back();
        report.role = "compiler";
        report.finding = Finding::kFound;
        report.problem.clear();
    }
    const Library& library = in_runtime ? runtime : own;
#define OST_LOAD(name, result, parameters) \
    rtc.name = reinterpret_cast<decltype(rtc.name)>(library.required(#name, report));
    OST_HIP_COMPILER(OST_LOAD)
#undef OST_LOAD
    if (report.finding == Finding::kFound) {
        api = {rtc.hiprtcVersion,        rtc.hiprtcGetErrorString,    rtc.hiprtcCreateProgram,
               rtc.hiprtcCompileProgram, rtc.hiprtcGetProgramLogSize, rtc.hiprtcGetProgramLog,
               rtc.hiprtcGetCodeSize,    rtc.hiprtcGetCode,           rtc.hiprtcDestroyProgram};
        int major = 0, minor = 0;
        if (rtc.hiprtcVersion(&major, &minor) == 0)
            report.version = std::to_string(major) + "." + std::to_string(minor);
    }
    reports.push_back(report);
}

void open_amd_blas(BlasApi& api, std::vector<LibraryReport>& reports, const Search& search, int runtime_version) {
    LibraryReport report;
    report.role = "blas";
    const Library library("libhipblaslt", search, {".1", ".0", ""}, report);
#define OST_LOAD(name, result, parameters) \
    lt.name = reinterpret_cast<decltype(lt.name)>(library.required(#name, report));
    OST_HIP_BLAS(OST_LOAD)
#undef OST_LOAD
    if (report.finding == Finding::kFound && runtime_version < 60000000) {
        report.finding = Finding::kIncomplete;
        report.problem = "libhipblaslt of ROCm 5 numbers its compute types otherwise; ROCm 6 or newer is needed";
    }
    if (report.finding == Finding::kFound) {
        Adaptor::calls = {lt.hipblasLtMatmulDescCreate,
                          lt.hipblasLtMatmulDescSetAttribute,
                          lt.hipblasLtMatrixLayoutSetAttribute,
                          lt.hipblasLtMatmulPreferenceCreate,
                          lt.hipblasLtMatmulPreferenceDestroy,
                          lt.hipblasLtMatmulPreferenceSetAttribute,
                          lt.hipblasLtMatmulAlgoGetHeuristic,
                          lt.hipblasLtMatmul,
                          nullptr};
        api = {status_text,
               lt.hipblasLtGetVersion,
               lt.hipblasLtCreate,
               lt.hipblasLtDestroy,
               Adaptor::description_create,
               lt.hipblasLtMatmulDescDestroy,
               Adaptor::description_set,
               lt.hipblasLtMatrixLayoutCreate,
               lt.hipblasLtMatrixLayoutDestroy,
               Adaptor::layout_set,
               Adaptor::choices,
               Adaptor::check,
               Adaptor::matmul};
    }
    reports.push_back(report);
}

}  // namespace ost::gpu
