// What a host kernel sees, and how kernels are registered.
//
// A kernel is a plain function of a Call. It gets addresses and scalars, hands work to the pool in fixed chunks and
// writes its results. It never allocates, never chooses an algorithm by anything but its arguments, and reduces in an
// order fixed by those arguments: the same bits for any number of threads.
#pragma once

#include <cstdint>

#include "ostinato.h"

namespace ost {

class ThreadPool;

struct Call {
    const ost_operand* operands;
    const ost_param* params;
    uint32_t operand_count;
    uint32_t param_count;
    ThreadPool* pool;
    int32_t* status;  // a kernel that meets an index out of range stores OST_OUT_OF_RANGE here (relaxed atomic), one
                      // that is given parameters or operands it cannot work with OST_INVALID_ARGUMENT

    // Always inlined: kernels are compiled for several instruction sets, and a shared out-of-line copy of these would
    // be whichever one the linker met first.
    template <class T>
    __attribute__((always_inline)) T* pointer(uint32_t operand) const {
        return static_cast<T*>(operands[operand].address);
    }
    __attribute__((always_inline)) int64_t integer(uint32_t param) const { return params[param].i; }
    __attribute__((always_inline)) double real(uint32_t param) const { return params[param].f; }
};

using KernelFunction = void (*)(const Call&);

struct KernelEntry {
    const char* name;
    KernelFunction run;
    uint32_t operand_count;      // exact; absent optional operands are null addresses
    uint32_t param_count;        // exact
    uint32_t optional_operands;  // bit i set: operand i may be null
};

struct KernelTable {
    const KernelEntry* entries;
    uint32_t count;
};

// What one ISA unit exports (kernels/registry.cpp): the tables of all kernel families.
using KernelFamily = KernelTable (*)();
struct KernelUnit {
    const KernelFamily* families;
    uint32_t count;
};

// A hash of the sources of each family, in the order of the registry: kernel_hashes.py writes it while building.
struct KernelFamilyHash {
    const char* family;
    const char* sources;
};
extern const KernelFamilyHash kernel_family_hashes[];
extern const uint32_t kernel_family_hash_count;

}  // namespace ost
