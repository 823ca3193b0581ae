// The vendors' GEMM behind the table: hipBLASLt and cublasLt are one interface under two sets of names, types and
// numbers, so the adaptors are one template over them.
//
// A Vendor has the types Algorithm, Heuristic and Preference; the numbers kComputes (by ComputeType), kDescription (by
// GemmAttribute), kLayout (by LayoutAttribute), kOperations (as it is, transposed), kPreferenceWorkspace and
// kNotSupported; and kPreferenceAlignments, the attributes that say how operands are aligned (none: it does not ask).
#pragma once

#include <cstring>
#include <iterator>
#include <vector>

#include "gpu_api.h"

namespace ost::gpu {

// What both have, under one name.
template <class Vendor>
struct BlasCalls {
    int (*description_create)(GemmDescription*, int, DataType);
    int (*description_set)(GemmDescription, int, const void*, size_t);
    int (*layout_set)(MatrixLayout, int, const void*, size_t);
    int (*preference_create)(typename Vendor::Preference*);
    int (*preference_destroy)(typename Vendor::Preference);
    int (*preference_set)(typename Vendor::Preference, int, const void*, size_t);
    int (*heuristic)(Blas, GemmDescription, MatrixLayout, MatrixLayout, MatrixLayout, MatrixLayout,
                     typename Vendor::Preference, int, typename Vendor::Heuristic*, int*);
    int (*matmul)(Blas, GemmDescription, const void*, const void*, MatrixLayout, const void*, MatrixLayout, const void*,
                  const void*, MatrixLayout, void*, MatrixLayout, const typename Vendor::Algorithm*, void*, size_t,
                  Stream);
    // Null: an algorithm is good for a problem when the heuristic proposes it.
    int (*check)(Blas, GemmDescription, MatrixLayout, MatrixLayout, MatrixLayout, MatrixLayout,
                 const typename Vendor::Algorithm*, typename Vendor::Heuristic*);
};

template <class Vendor>
struct BlasAdaptor {
    static inline BlasCalls<Vendor> calls = {};

    static int description_create(GemmDescription* description, ComputeType compute, DataType scale) {
        return calls.description_create(description, Vendor::kComputes[static_cast<int>(compute)], scale);
    }

    static int description_set(GemmDescription description, GemmAttribute attribute, uint64_t value) {
        const int number = Vendor::kDescription[static_cast<int>(attribute)];
        if (attribute == GemmAttribute::kBias) return calls.description_set(description, number, &value, sizeof value);
        const bool transpose = attribute == GemmAttribute::kTransposeA || attribute == GemmAttribute::kTransposeB;
        const uint32_t word = transpose ? Vendor::kOperations[value != 0] : static_cast<uint32_t>(value);
        return calls.description_set(description, number, &word, sizeof word);
    }

    static int layout_set(MatrixLayout layout, LayoutAttribute attribute, int64_t value) {
        const int number = Vendor::kLayout[static_cast<int>(attribute)];
        if (attribute == LayoutAttribute::kBatchStride) return calls.layout_set(layout, number, &value, sizeof value);
        const auto count = static_cast<int32_t>(value);
        return calls.layout_set(layout, number, &count, sizeof count);
    }

    static int choices(Blas blas, GemmDescription description, MatrixLayout a, MatrixLayout b, MatrixLayout c,
                       MatrixLayout d, size_t workspace_limit, int wanted, GemmChoice* list, int* found) {
        *found = 0;
        typename Vendor::Preference preference = nullptr;
        int status = calls.preference_create(&preference);
        if (status != 0) return status;
        std::vector<typename Vendor::Heuristic> results(static_cast<size_t>(wanted));
        int returned = 0;
        status = prefer(preference, workspace_limit);
        if (status == 0) {
            status = calls.heuristic(blas, description, a, b, c, d, preference, wanted, results.data(), &returned);
        }
        for (int i = 0; status == 0 && i < returned; ++i) {
            const auto& result = results[static_cast<size_t>(i)];
            if (result.state != 0) continue;
            GemmChoice& choice = list[(*found)++];
            choice = {{}, result.workspace_bytes, result.waves};
            static_assert(sizeof(typename Vendor::Algorithm) <= sizeof choice.algorithm, "an algorithm fits");
            std::memcpy(choice.algorithm, &result.algorithm, sizeof result.algorithm);
        }
        calls.preference_destroy(preference);
        return status;
    }

    static int check(Blas blas, GemmDescription description, MatrixLayout a, MatrixLayout b, MatrixLayout c,
                     MatrixLayout d, size_t workspace_limit, const GemmChoice* choice, size_t* workspace_bytes) {
        if (calls.check == nullptr) {
            std::vector<GemmChoice> list(kMostProposals);
            int found = 0;
            const int status =
                choices(blas, description, a, b, c, d, workspace_limit, kMostProposals, list.data(), &found);
            for (int i = 0; status == 0 && i < found; ++i) {
                const GemmChoice& proposed = list[static_cast<size_t>(i)];
                if (std::memcmp(proposed.algorithm, choice->algorithm, sizeof choice->algorithm) != 0) continue;
                *workspace_bytes = proposed.workspace_bytes;
                return 0;
            }
            return status != 0 ? status : Vendor::kNotSupported;
        }
        typename Vendor::Algorithm algorithm;
        std::memcpy(&algorithm, choice->algorithm, sizeof algorithm);
        typename Vendor::Heuristic result = {};
        const int status = calls.check(blas, description, a, b, c, d, &algorithm, &result);
        if (status != 0) return status;
        *workspace_bytes = result.workspace_bytes;
        return result.state;
    }

    static int matmul(Blas blas, GemmDescription description, const void* alpha, const void* a, MatrixLayout a_layout,
                      const void* b, MatrixLayout b_layout, const void* beta, const void* c, MatrixLayout c_layout,
                      void* d, MatrixLayout d_layout, const GemmChoice* choice, void* workspace,
                      size_t workspace_bytes, Stream stream) {
        typename Vendor::Algorithm algorithm;
        std::memcpy(&algorithm, choice->algorithm, sizeof algorithm);
        return calls.matmul(blas, description, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                            &algorithm, workspace, workspace_bytes, stream);
    }

  private:
    static int prefer(typename Vendor::Preference preference, size_t workspace_limit) {
        const uint64_t limit = workspace_limit;
        int status = calls.preference_set(preference, Vendor::kPreferenceWorkspace, &limit, sizeof limit);
        const uint32_t alignment = kGemmAlignment;
        for (const int attribute : Vendor::kPreferenceAlignments) {
            if (status == 0) status = calls.preference_set(preference, attribute, &alignment, sizeof alignment);
        }
        return status;
    }
};

}  // namespace ost::gpu
