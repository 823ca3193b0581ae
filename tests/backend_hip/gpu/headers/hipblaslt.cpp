// Our declarations of AMD's vendor GEMM against the headers of ROCm 6 or newer. Distributions carry none yet: this one
// runs where ROCm itself is installed.
#include "native/gpu/amd.h"

#define __HIP_PLATFORM_AMD__ 1
#include <hipblaslt/hipblaslt.h>

#include "same.h"

using namespace ost::gpu;

#define CHECK(name, result, parameters) \
    static_assert(same::function<decltype(amd::BlasFunctions::name), decltype(&::name)>, #name);
OST_HIP_BLAS(CHECK)
#undef CHECK

SAME_NUMBER(kEpilogueNone, HIPBLASLT_EPILOGUE_DEFAULT);
SAME_NUMBER(kEpilogueBias, HIPBLASLT_EPILOGUE_BIAS);
SAME_NUMBER(amd::kComputeF32, HIPBLAS_COMPUTE_32F);
SAME_NUMBER(amd::kComputeF32FastTf32, HIPBLAS_COMPUTE_32F_FAST_TF32);
SAME_NUMBER(amd::kComputeI32, HIPBLAS_COMPUTE_32I);
SAME_NUMBER(amd::kOperationNone, HIPBLAS_OP_N);
SAME_NUMBER(amd::kOperationTranspose, HIPBLAS_OP_T);
SAME_NUMBER(amd::kDescriptionTransposeA, HIPBLASLT_MATMUL_DESC_TRANSA);
SAME_NUMBER(amd::kDescriptionTransposeB, HIPBLASLT_MATMUL_DESC_TRANSB);
SAME_NUMBER(amd::kDescriptionEpilogue, HIPBLASLT_MATMUL_DESC_EPILOGUE);
SAME_NUMBER(amd::kDescriptionBias, HIPBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME_NUMBER(amd::kDescriptionBiasType, HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
SAME_NUMBER(amd::kLayoutBatchCount, HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
SAME_NUMBER(amd::kLayoutBatchStride, HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
SAME_NUMBER(amd::kPreferenceWorkspace, HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(sizeof(amd::GemmAlgorithm) == sizeof(hipblasLtMatmulAlgo_t), "algorithms");
static_assert(sizeof(amd::GemmHeuristic) == sizeof(hipblasLtMatmulHeuristicResult_t), "heuristics");
SAME_FIELD(amd::GemmHeuristic, workspace_bytes, hipblasLtMatmulHeuristicResult_t, workspaceSize);
SAME_FIELD(amd::GemmHeuristic, state, hipblasLtMatmulHeuristicResult_t, state);
SAME_FIELD(amd::GemmHeuristic, waves, hipblasLtMatmulHeuristicResult_t, wavesCount);
