// CPU features come from cpuid itself, not from __builtin_cpu_supports: the names it knows differ between compilers,
// and one question it does not answer in all of them is whether the system saves the wide registers (xgetbv).
#include "isa.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__) && (defined(OST_UNIT_AVX2) || defined(OST_UNIT_AVX512) || defined(OST_UNIT_AVX512_BF16))
#include <cpuid.h>
#define OST_X86 1
#endif

namespace ost {

namespace portable {
KernelUnit kernel_unit();
}
namespace avx2 {
KernelUnit kernel_unit();
}
namespace avx512 {
KernelUnit kernel_unit();
}
namespace avx512_bf16 {
KernelUnit kernel_unit();
}

namespace {

struct Features {
    bool avx2 = false;    // AVX2, FMA, F16C
    bool avx512 = false;  // F, BW, DQ, VL and the above
    bool avx512_bf16 = false;
};

#if defined(OST_X86)
uint64_t saved_registers() {
    uint32_t low = 0;
    uint32_t high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<uint64_t>(high) << 32) | low;
}

Features detect() {
    Features f;
    uint32_t a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return f;
    const bool system_saves = (c >> 27) & 1u;  // OSXSAVE
    const bool avx = (c >> 28) & 1u, fma = (c >> 12) & 1u, f16c = (c >> 29) & 1u;
    if (!system_saves || !avx) return f;
    const uint64_t saved = saved_registers();
    const bool ymm = (saved & 0x06) == 0x06;
    const bool zmm = (saved & 0xe6) == 0xe6;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return f;
    const uint32_t subleaves = a;
    const bool avx2 = (b >> 5) & 1u;
    const bool wide = ((b >> 16) & 1u) && ((b >> 17) & 1u) && ((b >> 30) & 1u) && ((b >> 31) & 1u);  // F DQ BW VL
    f.avx2 = ymm && avx2 && fma && f16c;
    f.avx512 = f.avx2 && zmm && wide;
    if (f.avx512 && subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) f.avx512_bf16 = (a >> 5) & 1u;
    return f;
}
#else
Features detect() { return {}; }
#endif

std::string first_line_with(const char* path, const char* key) {
    std::string found;
    if (std::FILE* file = std::fopen(path, "r")) {
        char line[512];
        while (found.empty() && std::fgets(line, sizeof line, file) != nullptr) {
            if (std::strncmp(line, key, std::strlen(key)) == 0) found = line;
        }
        std::fclose(file);
    }
    while (!found.empty() && (found.back() == '\n' || found.back() == ' ')) found.pop_back();
    return found;
}

// cpu.max of control groups v2: "quota period" in microseconds, or "max period".
uint32_t quota_cores() {
    const std::string line = first_line_with("/sys/fs/cgroup/cpu.max", "");
    long quota = 0;
    long period = 0;
    if (std::sscanf(line.c_str(), "%ld %ld", &quota, &period) != 2 || quota <= 0 || period <= 0) return UINT32_MAX;
    return static_cast<uint32_t>((quota + period - 1) / period);
}

}  // namespace

const std::vector<Unit>& units() {
    static const std::vector<Unit> list = [] {
        const Features has = detect();
        (void)has;
        std::vector<Unit> all = {{"portable", portable::kernel_unit, true}};
#if defined(OST_UNIT_AVX2)
        all.push_back({"avx2", avx2::kernel_unit, has.avx2});
#endif
#if defined(OST_UNIT_AVX512)
        all.push_back({"avx512", avx512::kernel_unit, has.avx512});
#endif
#if defined(OST_UNIT_AVX512_BF16)
        all.push_back({"avx512_bf16", avx512_bf16::kernel_unit, has.avx512_bf16});
#endif
        return all;
    }();
    return list;
}

const char* available_units() {
    static const std::string names = [] {
        std::string all;
        for (const Unit& unit : units()) {
            if (unit.usable) all += (all.empty() ? "" : ",") + std::string(unit.name);
        }
        return all;
    }();
    return names.c_str();
}

const char* processor_name() {
    static const std::string name = [] {
        const std::string line = first_line_with("/proc/cpuinfo", "model name");
        const size_t colon = line.find(": ");
        if (colon != std::string::npos) return line.substr(colon + 2);
        return std::string("unknown");
    }();
    return name.c_str();
}

uint32_t usable_cores() {
    uint32_t cores = std::thread::hardware_concurrency();
#if defined(__linux__)
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        std::set<std::string> physical;  // sibling lists name a core by its hardware threads
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (!CPU_ISSET(cpu, &allowed)) continue;
            const std::string path =
                "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list";
            const std::string siblings = first_line_with(path.c_str(), "");
            physical.insert(siblings.empty() ? "cpu" + std::to_string(cpu) : siblings);
        }
        cores = static_cast<uint32_t>(physical.size());
    }
    const uint32_t quota = quota_cores();
    if (quota < cores) cores = quota;
#endif
    return cores == 0 ? 1 : cores;
}

}  // namespace ost
