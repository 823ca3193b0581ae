// AMD's run-time compiler and vendor GEMM.
#include "amd.h"
#include "library.h"

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

size_t blas_version() { return 0; }

int description_create(GemmDescription* description, ComputeType compute, DataType scale) {
    const int numbers[] = {amd::kComputeF32, amd::kComputeF32FastTf32, amd::kComputeI32};
    return lt.hipblasLtMatmulDescCreate(description, numbers[static_cast<int>(compute)], scale);
}

int description_set(GemmDescription description, GemmAttribute attribute, uint64_t value) {
    const auto number = static_cast<uint32_t>(value);
    const uint32_t operation = value != 0 ? amd::kOperationTranspose : amd::kOperationNone;
    switch (attribute) {
        case GemmAttribute::kTransposeA:
            return lt.hipblasLtMatmulDescSetAttribute(description, amd::kDescriptionTransposeA, &operation, 4);
        case GemmAttribute::kTransposeB:
            return lt.hipblasLtMatmulDescSetAttribute(description, amd::kDescriptionTransposeB, &operation, 4);
        case GemmAttribute::kEpilogue:
            return lt.hipblasLtMatmulDescSetAttribute(description, amd::kDescriptionEpilogue, &number, 4);
        case GemmAttribute::kBias:
            return lt.hipblasLtMatmulDescSetAttribute(description, amd::kDescriptionBias, &value, 8);
        case GemmAttribute::kBiasType:
            return lt.hipblasLtMatmulDescSetAttribute(description, amd::kDescriptionBiasType, &number, 4);
    }
    return 3;
}

int layout_set(MatrixLayout layout, LayoutAttribute attribute, int64_t value) {
    if (attribute == LayoutAttribute::kBatchStride) {
        return lt.hipblasLtMatrixLayoutSetAttribute(layout, amd::kLayoutBatchStride, &value, 8);
    }
    const auto count = static_cast<int32_t>(value);
    return lt.hipblasLtMatrixLayoutSetAttribute(layout, amd::kLayoutBatchCount, &count, 4);
}

int choices(Blas blas, GemmDescription description, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d,
            size_t workspace_limit, int wanted, GemmChoice* list, int* found) {
    *found = 0;
    amd::GemmPreference preference = nullptr;
    int status = lt.hipblasLtMatmulPreferenceCreate(&preference);
    if (status != 0) return status;
    const uint64_t limit = workspace_limit;
    std::vector<amd::GemmHeuristic> results(static_cast<size_t>(wanted));
    status = lt.hipblasLtMatmulPreferenceSetAttribute(preference, amd::kPreferenceWorkspace, &limit, sizeof limit);
    if (status == 0) {
        int returned = 0;
        status = lt.hipblasLtMatmulAlgoGetHeuristic(blas, description, a, b, c, d, preference, wanted, results.data(),
                                                    &returned);
        for (int i = 0; status == 0 && i < returned; ++i) {
            const amd::GemmHeuristic& result = results[static_cast<size_t>(i)];
            if (result.state != 0) continue;
            GemmChoice& choice = list[(*found)++];
            choice = {{}, result.workspace_bytes, result.waves};
            static_assert(sizeof(amd::GemmAlgorithm) <= sizeof choice.algorithm, "an algorithm fits");
            __builtin_memcpy(choice.algorithm, &result.algorithm, sizeof result.algorithm);
        }
    }
    lt.hipblasLtMatmulPreferenceDestroy(preference);
    return status;
}

int matmul(Blas blas, GemmDescription description, const void* alpha, const void* a, MatrixLayout a_layout,
           const void* b, MatrixLayout b_layout, const void* beta, const void* c, MatrixLayout c_layout, void* d,
           MatrixLayout d_layout, const GemmChoice* choice, void* workspace, size_t workspace_bytes, Stream stream) {
    amd::GemmAlgorithm algorithm;
    __builtin_memcpy(&algorithm, choice->algorithm, sizeof algorithm);
    return lt.hipblasLtMatmul(blas, description, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                              &algorithm, workspace, workspace_bytes, stream);
}

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
        api = {status_text,
               blas_version,
               lt.hipblasLtCreate,
               lt.hipblasLtDestroy,
               description_create,
               lt.hipblasLtMatmulDescDestroy,
               description_set,
               lt.hipblasLtMatrixLayoutCreate,
               lt.hipblasLtMatrixLayoutDestroy,
               layout_set,
               choices,
               matmul};
    }
    reports.push_back(report);
}

}  // namespace ost::gpu
