// Our declarations of NVIDIA's vendor GEMM against cublasLt.h.
#include "native/gpu/nvidia.h"

#include <cublasLt.h>

#include "same.h"

using namespace ost::gpu;

#define CHECK(name, result, parameters) \
    static_assert(same::function<decltype(nvidia::BlasFunctions::name), decltype(&::name)>, #name);
OST_CUDA_BLAS(CHECK)
#undef CHECK

SAME_NUMBER(DataType::kF32, CUDA_R_32F);
SAME_NUMBER(DataType::kF16, CUDA_R_16F);
SAME_NUMBER(DataType::kI8, CUDA_R_8I);
SAME_NUMBER(DataType::kI32, CUDA_R_32I);
SAME_NUMBER(DataType::kBf16, CUDA_R_16BF);
SAME_NUMBER(kEpilogueNone, CUBLASLT_EPILOGUE_DEFAULT);
SAME_NUMBER(kEpilogueBias, CUBLASLT_EPILOGUE_BIAS);
SAME_NUMBER(nvidia::kOperationNone, CUBLAS_OP_N);
SAME_NUMBER(nvidia::kOperationTranspose, CUBLAS_OP_T);
SAME_NUMBER(0, CUBLAS_STATUS_SUCCESS);
SAME_NUMBER(15, CUBLAS_STATUS_NOT_SUPPORTED);
SAME_NUMBER(nvidia::kComputeF32, CUBLAS_COMPUTE_32F);
SAME_NUMBER(nvidia::kComputeF32FastTf32, CUBLAS_COMPUTE_32F_FAST_TF32);
SAME_NUMBER(nvidia::kComputeI32, CUBLAS_COMPUTE_32I);
SAME_NUMBER(nvidia::kDescriptionTransposeA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME_NUMBER(nvidia::kDescriptionTransposeB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME_NUMBER(nvidia::kDescriptionEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME_NUMBER(nvidia::kDescriptionBias, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME_NUMBER(nvidia::kDescriptionBiasType, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
SAME_NUMBER(nvidia::kLayoutBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
SAME_NUMBER(nvidia::kLayoutBatchStride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
SAME_NUMBER(nvidia::kPreferenceWorkspace, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME_NUMBER(nvidia::kPreferenceAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME_NUMBER(nvidia::kPreferenceAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME_NUMBER(nvidia::kPreferenceAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME_NUMBER(nvidia::kPreferenceAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

static_assert(sizeof(nvidia::GemmAlgorithm) == sizeof(cublasLtMatmulAlgo_t), "algorithms");
static_assert(sizeof(GemmChoice::algorithm) == sizeof(cublasLtMatmulAlgo_t), "algorithms");
static_assert(sizeof(nvidia::GemmHeuristic) == sizeof(cublasLtMatmulHeuristicResult_t), "heuristics");
SAME_FIELD(nvidia::GemmHeuristic, algorithm, cublasLtMatmulHeuristicResult_t, algo);
SAME_FIELD(nvidia::GemmHeuristic, workspace_bytes, cublasLtMatmulHeuristicResult_t, workspaceSize);
SAME_FIELD(nvidia::GemmHeuristic, state, cublasLtMatmulHeuristicResult_t, state);
SAME_FIELD(nvidia::GemmHeuristic, waves, cublasLtMatmulHeuristicResult_t, wavesCount);
