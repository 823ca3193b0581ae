// Libraries, devices, streams, events, kernels and vendor GEMM as Python sees them.
#include "bind.h"
#include "gemm.h"
#include "module.h"

namespace ost::hip {

namespace {

using Triple = std::tuple<uint32_t, uint32_t, uint32_t>;

gpu::Extent extent(const Triple& t) { return {std::get<0>(t), std::get<1>(t), std::get<2>(t)}; }

const char* finding_name(gpu::Finding finding) {
    switch (finding) {
        case gpu::Finding::kFound: return "found";
        case gpu::Finding::kIncomplete: return "incomplete";
        default: return "missing";
    }
}

Gpu& open(const std::string& platform, const std::vector<std::string>& folders, bool sealed) {
    if (platform != "amd" && platform != "nvidia") {
        throw Failure(Kind::kInvalid, "GPU platform '" + platform + "' is unknown", "there are amd and nvidia");
    }
    return Gpu::open(platform == "amd" ? gpu::Platform::kAmd : gpu::Platform::kNvidia, {folders, sealed});
}

std::vector<Argument> pack(const Function& function, const py::sequence& values) {
    const std::string& letters = function.parameters();
    if (values.size() != letters.size()) {
        throw Failure(Kind::kInvalid, "kernel " + function.name() + " takes " + std::to_string(letters.size()) +
                                          " arguments, found " + std::to_string(values.size()));
    }
    std::vector<Argument> arguments(letters.size());
    for (size_t i = 0; i < letters.size(); ++i) {
        const py::object value = values[i];
        Argument& argument = arguments[i];
        if (letters[i] == 'd') {
            if (!PyFloat_Check(value.ptr()))
                throw Failure(Kind::kInvalid,
                              "argument " + std::to_string(i) + " of kernel " + function.name() + " is a float");
            argument.real = py::cast<double>(value);
        } else if (!PyLong_Check(value.ptr())) {
            throw Failure(Kind::kInvalid,
                          "argument " + std::to_string(i) + " of kernel " + function.name() + " is an int");
        } else if (letters[i] == 'p') {
            argument.address = pointer(py::cast<uintptr_t>(value));
        } else if (letters[i] == 'u') {
            argument.number = py::cast<uint32_t>(value);
        } else {
            argument.integer = py::cast<int64_t>(value);
        }
    }
    return arguments;
}

gpu::DataType data_type(const std::string& name) {
    if (name == "f32") return gpu::DataType::kF32;
    if (name == "f16") return gpu::DataType::kF16;
    if (name == "bf16") return gpu::DataType::kBf16;
    if (name == "i8") return gpu::DataType::kI8;
    if (name == "i32") return gpu::DataType::kI32;
    throw Failure(Kind::kInvalid, "the vendor's GEMM has no type " + name);
}

gpu::ComputeType compute_type(const std::string& name) {
    if (name == "f32") return gpu::ComputeType::kF32;
    if (name == "tf32") return gpu::ComputeType::kF32FastTf32;
    if (name == "i32") return gpu::ComputeType::kI32;
    throw Failure(Kind::kInvalid, "the vendor's GEMM computes in f32, tf32 or i32, not in " + name);
}

using Types = std::tuple<std::string, std::string, std::string, std::string>;
using Four = std::tuple<int64_t, int64_t, int64_t, int64_t>;

GemmProblem problem(int64_t m, int64_t n, int64_t k, const Types& types, const Four& leading, bool transpose_a,
                    bool transpose_b, const std::string& compute, const std::string& bias, int64_t batches,
                    const Four& strides) {
    return {m,
            n,
            k,
            batches,
            transpose_a,
            transpose_b,
            !bias.empty(),
            data_type(std::get<0>(types)),
            data_type(std::get<1>(types)),
            data_type(std::get<2>(types)),
            data_type(std::get<3>(types)),
            bias.empty() ? gpu::DataType::kF32 : data_type(bias),
            compute_type(compute),
            std::get<0>(leading),
            std::get<1>(leading),
            std::get<2>(leading),
            std::get<3>(leading),
            std::get<0>(strides),
            std::get<1>(strides),
            std::get<2>(strides),
            std::get<3>(strides)};
}

void bind_libraries(py::module_& m) {
    py::class_<gpu::LibraryReport>(m, "LibraryReport", "One vendor library: what was found.")
        .def_readonly("role", &gpu::LibraryReport::role)
        .def_readonly("name", &gpu::LibraryReport::name)
        .def_readonly("path", &gpu::LibraryReport::path)
        .def_readonly("version", &gpu::LibraryReport::version)
        .def_property_readonly("finding", [](const gpu::LibraryReport& r) { return finding_name(r.finding); })
        .def_readonly("problem", &gpu::LibraryReport::problem);

    py::class_<Gpu, std::unique_ptr<Gpu, py::nodelete>>(m, "Gpu", "The opened libraries of one platform.")
        .def_property_readonly("platform",
                               [](const Gpu& g) { return g.platform() == gpu::Platform::kAmd ? "amd" : "nvidia"; })
        .def_property_readonly("reports", &Gpu::reports)
        .def_property_readonly("device_count", &Gpu::device_count)
        .def("device", &Gpu::device, py::arg("index"), py::return_value_policy::reference)
        .def_property_readonly("compiler_version", &compiler_version)
        .def(
            "compile",
            [](Gpu& g, const std::string& source, const std::string& name, const std::vector<std::string>& options) {
                std::string code;
                without_gil([&] { code = compile(g, source, name, options); });
                return py::bytes(code);
            },
            py::arg("source"), py::arg("name"), py::arg("options"));
    m.def("open_gpu", open, py::arg("platform"), py::arg("folders"), py::arg("sealed") = false,
          py::return_value_policy::reference);
}

void bind_devices(py::module_& m) {
    py::class_<Counters>(m, "AllocationCounters", "What a device's allocator has done.")
        .def_readonly("current_bytes", &Counters::current_bytes)
        .def_readonly("peak_bytes", &Counters::peak_bytes)
        .def_readonly("total_bytes", &Counters::total_bytes)
        .def_readonly("cached_bytes", &Counters::cached_bytes)
        .def_readonly("pending_bytes", &Counters::pending_bytes)
        .def_readonly("reserved_bytes", &Counters::reserved_bytes)
        .def_readonly("allocations", &Counters::allocations)
        .def_readonly("deallocations", &Counters::deallocations)
        .def_readonly("backend_allocations", &Counters::backend_allocations)
        .def_readonly("backend_deallocations", &Counters::backend_deallocations)
        .def_readonly("reuses", &Counters::reuses)
        .def_readonly("handoffs", &Counters::handoffs);

    py::class_<Device, std::unique_ptr<Device, py::nodelete>> device(m, "GpuDevice",
                                                                     "One GPU, for as long as the process lives.");
    const std::pair<const char*, int gpu::DeviceFacts::*> facts[] = {
        {"wave", &gpu::DeviceFacts::wave},
        {"multiprocessors", &gpu::DeviceFacts::multiprocessors},
        {"threads_per_block", &gpu::DeviceFacts::threads_per_block},
        {"threads_per_multiprocessor", &gpu::DeviceFacts::threads_per_multiprocessor},
        {"registers_per_block", &gpu::DeviceFacts::registers_per_block},
        {"shared_bytes_per_block", &gpu::DeviceFacts::shared_bytes_per_block},
        {"shared_bytes_per_block_limit", &gpu::DeviceFacts::shared_bytes_per_block_limit},
        {"l2_bytes", &gpu::DeviceFacts::l2_bytes},
        {"clock_khz", &gpu::DeviceFacts::clock_khz},
        {"memory_clock_khz", &gpu::DeviceFacts::memory_clock_khz},
        {"memory_bus_bits", &gpu::DeviceFacts::memory_bus_bits},
        {"pci_bus", &gpu::DeviceFacts::pci_bus},
        {"early_starts", &gpu::DeviceFacts::early_starts},
    };
    for (const auto& [name, field] : facts) {
        device.def_property_readonly(name, [field = field](const Device& d) { return d.facts.*field; });
    }
    device.def_readonly("index", &Device::index)
        .def_property_readonly(
            "gpu", [](const Device& d) -> Gpu& { return d.gpu; }, py::return_value_policy::reference)
        .def_property_readonly("name", [](const Device& d) { return std::string(d.facts.name); })
        .def_property_readonly("architecture", [](const Device& d) { return std::string(d.facts.architecture); })
        .def_property_readonly("memory_bytes", [](const Device& d) { return d.facts.memory_bytes; })
        .def_property_readonly("memory_info",
                               [](const Device& d) {
                                   const Current current(d);
                                   std::pair<size_t, size_t> info;
                                   d.gpu.check(d.gpu.runtime().memory_info(&info.first, &info.second),
                                               "asking for free memory");
                                   return info;
                               })
        .def(
            "allocate",
            [](Device& d, size_t bytes) {
                void* found = nullptr;
                without_gil([&] { found = d.allocate(bytes); });
                return address(found);
            },
            py::arg("bytes"))
        .def(
            "free", [](Device& d, uintptr_t at) { without_gil([&] { d.release(pointer(at)); }); }, py::arg("address"))
        .def_property_readonly("counters", &Device::counters)
        .def_property_readonly("launches", [](const Device& d) { return d.launches.load(); })
        .def("reset_peak", &Device::reset_peak)
        .def_property("pool_enabled", &Device::pool_enabled, &Device::enable_pool)
        .def_property_readonly("pool_banned", &Device::pool_banned)
        .def_property("pool_capacity", &Device::pool_capacity, &Device::set_pool_capacity)
        .def("trim_pool", [](Device& d) { without_gil([&] { d.trim_pool(); }); })
        .def("hand_off", [](Device& d) { without_gil([&] { d.hand_off(); }); })
        .def("synchronize", [](const Device& d) { without_gil([&] { d.synchronize(); }); });
    refuse_copies(device);
}

void bind_streams(py::module_& m) {
    py::class_<Stream> stream(m, "Stream",
                              "A stream of a GPU, or of the CPU where the device is None: legal and synchronous.");
    stream.def(py::init<Device*, bool>(), py::arg("device").none(true), py::arg("non_blocking") = false)
        .def_static(
            "external",
            [](Device& d, uintptr_t handle) { return Stream::external(d, static_cast<gpu::Stream>(pointer(handle))); },
            py::arg("device"), py::arg("handle"))
        .def_property_readonly("device", &Stream::device, py::return_value_policy::reference)
        .def_property_readonly("handle", [](const Stream& s) { return address(s.handle()); })
        .def("synchronize", [](const Stream& s) { without_gil([&] { s.synchronize(); }); })
        .def_property_readonly("done", &Stream::done);
    refuse_copies(stream);

    py::class_<Event> event(m, "Event", "A place in a stream's order.");
    event.def(py::init<Device*, bool>(), py::arg("device").none(true), py::arg("timing") = true)
        .def_property_readonly("device", &Event::device, py::return_value_policy::reference)
        .def("record", &Event::record, py::arg("stream").none(true) = py::none())
        .def("wait", &Event::wait, py::arg("stream").none(true) = py::none())
        .def_property_readonly("ready", &Event::ready)
        .def("synchronize", [](const Event& e) { without_gil([&] { e.synchronize(); }); })
        .def("milliseconds_to", &Event::milliseconds_to, py::arg("later"));
    refuse_copies(event);

    m.def(
        "copy_async",
        [](uintptr_t to, Device* to_device, uintptr_t from, Device* from_device, size_t bytes, const Stream* stream) {
            without_gil([&] { copy_async({pointer(to), to_device}, {pointer(from), from_device}, bytes, stream); });
        },
        py::arg("to"), py::arg("to_device").none(true), py::arg("source"), py::arg("source_device").none(true),
        py::arg("bytes"), py::arg("stream").none(true) = py::none());
    m.def(
        "fill_async",
        [](uintptr_t to, Device* device, int value, size_t bytes, const Stream* stream) {
            without_gil([&] { fill_async({pointer(to), device}, value, bytes, stream); });
        },
        py::arg("to"), py::arg("device").none(true), py::arg("value"), py::arg("bytes"),
        py::arg("stream").none(true) = py::none());
}

void bind_kernels(py::module_& m) {
    py::class_<Function> function(m, "GpuFunction", "A kernel of a module and the letters of its parameters.");
    function.def_property_readonly("name", &Function::name)
        .def_property_readonly("parameters", &Function::parameters)
        .def_property_readonly("handle", [](const Function& f) { return address(f.handle()); })
        .def_property_readonly("facts",
                               [](const Function& f) {
                                   const FunctionFacts facts = f.facts();
                                   py::dict found;
                                   found["threads_per_block"] = facts.threads_per_block;
                                   found["registers"] = facts.registers;
                                   found["local_bytes"] = facts.local_bytes;
                                   found["shared_bytes"] = facts.shared_bytes;
                                   found["constant_bytes"] = facts.constant_bytes;
                                   return found;
                               })
        .def("blocks_per_multiprocessor", &Function::blocks_per_multiprocessor, py::arg("threads"),
             py::arg("shared_bytes") = 0)
        .def(
            "launch",
            [](const Function& f, const Triple& grid, const Triple& block, uint32_t shared_bytes,
               const py::sequence& arguments, const Stream* stream) {
                launch(f, extent(grid), extent(block), shared_bytes, pack(f, arguments), stream);
            },
            py::arg("grid"), py::arg("block"), py::arg("shared_bytes"), py::arg("arguments"),
            py::arg("stream").none(true) = py::none());
    refuse_copies(function);

    py::class_<Module> module(m, "GpuModule", "Kernels loaded on a device.");
    module
        .def(py::init([](Device& d, const py::bytes& code) { return std::make_unique<Module>(d, std::string(code)); }),
             py::arg("device"), py::arg("code"))
        .def_property_readonly("device", &Module::device, py::return_value_policy::reference)
        .def("function", &Module::function, py::arg("name"), py::arg("parameters"), py::arg("dynamic_shared_bytes") = 0,
             py::return_value_policy::reference_internal);
    refuse_copies(module);

    py::class_<gpu::GemmChoice>(m, "GemmChoice",
                                "An algorithm of the vendor's GEMM: data that can be kept and made again.")
        .def(py::init([](const std::vector<uint64_t>& algorithm, size_t workspace_bytes) {
                 gpu::GemmChoice choice = {};
                 if (algorithm.size() != std::size(choice.algorithm))
                     throw Failure(Kind::kInvalid, "an algorithm is eight numbers");
                 std::copy(algorithm.begin(), algorithm.end(), choice.algorithm);
                 choice.workspace_bytes = workspace_bytes;
                 return choice;
             }),
             py::arg("algorithm"), py::arg("workspace_bytes"))
        .def_property_readonly("algorithm",
                               [](const gpu::GemmChoice& c) {
                                   return std::vector<uint64_t>(std::begin(c.algorithm), std::end(c.algorithm));
                               })
        .def_readonly("workspace_bytes", &gpu::GemmChoice::workspace_bytes)
        .def_readonly("waves", &gpu::GemmChoice::waves);
    py::class_<GemmProblem>(m, "GemmProblem", "A matrix product in the vendors' column-major terms.")
        .def(py::init(&problem), py::arg("m"), py::arg("n"), py::arg("k"), py::arg("types"), py::arg("leading"),
             py::arg("transpose_a") = false, py::arg("transpose_b") = false, py::arg("compute") = "f32",
             py::arg("bias") = "", py::arg("batches") = 1, py::arg("strides") = Four{0, 0, 0, 0});
    m.def("warm_vendor", &warm_vendor, py::arg("device"));
    m.def("vendor_is_warm", &vendor_is_warm, py::arg("device"));
    m.def("vendor_version", &vendor_version, py::arg("device"));
    m.def(
        "gemm_choices",
        [](Device& d, const GemmProblem& p, size_t limit, int wanted) {
            return cached_plan(d, p).choices(limit, wanted);
        },
        py::arg("device"), py::arg("problem"), py::arg("workspace_limit"), py::arg("wanted") = gpu::kProposals);
    m.def(
        "gemm_accepts",
        [](Device& d, const GemmProblem& p, const gpu::GemmChoice& choice, size_t limit) {
            return cached_plan(d, p).accepts(choice, limit);
        },
        py::arg("device"), py::arg("problem"), py::arg("choice"), py::arg("workspace_limit"));
    m.def(
        "gemm_is_warm",
        [](Device& d, const GemmProblem& p, const gpu::GemmChoice& choice) { return cached_plan(d, p).is_warm(choice); },
        py::arg("device"), py::arg("problem"), py::arg("choice"));
    m.def(
        "gemm",
        [](Device& d, const GemmProblem& p, const gpu::GemmChoice& choice, uintptr_t a, uintptr_t b, uintptr_t c,
           uintptr_t out, uintptr_t bias, float alpha, float beta, uintptr_t workspace, size_t workspace_bytes,
           const Stream* stream) {
            cached_plan(d, p).run(choice,
                                  {pointer(a), pointer(b), pointer(c), pointer(out), pointer(bias), alpha, beta},
                                  pointer(workspace), workspace_bytes, stream);
        },
        py::arg("device"), py::arg("problem"), py::arg("choice"), py::arg("a"), py::arg("b"), py::arg("c"),
        py::arg("d"), py::arg("bias") = 0, py::arg("alpha") = 1.0f, py::arg("beta") = 0.0f, py::arg("workspace") = 0,
        py::arg("workspace_bytes") = 0, py::arg("stream").none(true) = py::none());
    m.def("plan_cache", [] {
        const PlanCacheCounters counters = plan_cache_counters();
        return std::make_tuple(counters.hits, counters.misses, counters.plans);
    });
    m.def("clear_plan_cache", &clear_plan_cache);
}

}  // namespace

void bind_device(py::module_& m) {
    bind_libraries(m);
    bind_devices(m);
    bind_streams(m);
    bind_kernels(m);
}

}  // namespace ost::hip
