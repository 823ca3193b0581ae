// Which kernel units this build carries and this CPU can run, and a few facts about the machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernel.h"

namespace ost {

struct Unit {
    const char* name;
    KernelUnit (*kernels)();
    bool usable;  // the CPU has its instructions and the system saves its registers
};

// In ascending order of preference; the portable unit is first and always usable.
const std::vector<Unit>& units();

const char* available_units();  // names of the usable ones, comma-separated
const char* processor_name();

// Physical cores this process may use: its affinity mask, one thread a core, at most its control group's quota.
uint32_t usable_cores();

}  // namespace ost
