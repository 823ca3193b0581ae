// Step tables and pinned memory as Python sees them.
#include "bind.h"
#include "table.h"

namespace ost::hip {

namespace {

using Triple = std::tuple<uint32_t, uint32_t, uint32_t>;

gpu::Extent extent(const Triple& t) { return {std::get<0>(t), std::get<1>(t), std::get<2>(t)}; }

LaunchWork launch_work(const Function& function, const Triple& grid, const Triple& block, uint32_t shared_bytes,
                       bool early, const std::vector<uintptr_t>& operands, const py::sequence& params) {
    LaunchWork work = {
        &function, extent(grid), extent(block), shared_bytes, early, std::string(operands.size(), 'p'), {}};
    for (const uintptr_t operand : operands) work.arguments.push_back(address_argument(pointer(operand)));
    for (const py::handle param : params) {
        Argument argument = {};
        if (PyFloat_Check(param.ptr())) {
            argument.real = py::cast<double>(param);
            work.letters += 'd';
        } else {
            argument.integer = py::cast<int64_t>(param);
            work.letters += 'i';
        }
        work.arguments.push_back(argument);
    }
    return work;
}

TableStep gemm_step(const std::string& node, const GemmProblem& problem, const gpu::GemmChoice& choice, uintptr_t a,
                    uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t bias, float alpha, float beta,
                    uintptr_t workspace, size_t workspace_bytes) {
    const GemmOperands operands = {pointer(a), pointer(b), pointer(c), pointer(d), pointer(bias), alpha, beta};
    return {node, GemmWork{problem, choice, operands, pointer(workspace), workspace_bytes}};
}

// Operands are (address, bytes). They go through the stack: a call allocates nothing.
void run_launch(const Launch& launch, const py::tuple& operands, const StatusBlock& status, const Stream* stream) {
    const size_t count = operands.size();
    if (count != launch.operands()) {
        throw Failure(Kind::kRuntime, "the kernel takes " + std::to_string(launch.operands()) + " operands, found " +
                                          std::to_string(count));
    }
    uintptr_t addresses[Launch::kMaximum];
    for (size_t i = 0; i < count; ++i) {
        PyObject* const operand = PyTuple_GET_ITEM(operands.ptr(), static_cast<Py_ssize_t>(i));
        if (PyTuple_Check(operand) == 0 || PyTuple_GET_SIZE(operand) != 2)
            throw Failure(Kind::kInvalid, "an operand is an address and a number of bytes");
        addresses[i] = PyLong_AsSize_t(PyTuple_GET_ITEM(operand, 0));
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    }
    without_gil([&] { launch.run(addresses, status, stream); });
}

// A table with what it refers to: steps hold their functions, which hold their modules. The table goes first.
struct TableObject {
    TableObject(Device& device, const py::object& stream, const py::iterable& steps)
        : stream(stream),
          steps(steps),
          table(device, stream.is_none() ? nullptr : &py::cast<const Stream&>(stream), list(this->steps)) {}

    static std::vector<const TableStep*> list(const py::tuple& steps) {
        std::vector<const TableStep*> found;
        for (const py::handle step : steps) found.push_back(&py::cast<const TableStep&>(step));
        return found;
    }

    py::object stream;
    py::tuple steps;
    Table table;
};

}  // namespace

void bind_table(py::module_& m) {
    py::class_<TableStep> step(m, "GpuStep", "A step with addresses, made by one of the functions of its kind.");
    step.def_static(
            "launch",
            [](const std::string& node, const Function& function, const Triple& grid, const Triple& block,
               uint32_t shared_bytes, const std::vector<uintptr_t>& operands, const py::sequence& params,
               bool early) {
                return TableStep{node, launch_work(function, grid, block, shared_bytes, early, operands, params)};
            },
            py::arg("node"), py::arg("function"), py::arg("grid"), py::arg("block"), py::arg("shared_bytes"),
            py::arg("operands"), py::arg("params"), py::arg("early") = false, py::keep_alive<0, 2>())
        .def_static("gemm", &gemm_step, py::arg("node"), py::arg("problem"), py::arg("choice"), py::arg("a"),
                    py::arg("b"), py::arg("c"), py::arg("d"), py::arg("bias") = 0, py::arg("alpha") = 1.0f,
                    py::arg("beta") = 0.0f, py::arg("workspace") = 0, py::arg("workspace_bytes") = 0)
        .def_static(
            "copy",
            [](const std::string& node, uintptr_t to, uintptr_t from, size_t bytes) {
                return TableStep{node, CopyWork{pointer(to), pointer(from), bytes}};
            },
            py::arg("node"), py::arg("to"), py::arg("source"), py::arg("bytes"))
        .def_static(
            "fill",
            [](const std::string& node, uintptr_t to, int value, size_t bytes) {
                return TableStep{node, FillWork{pointer(to), value, bytes}};
            },
            py::arg("node"), py::arg("to"), py::arg("value"), py::arg("bytes"))
        .def_readonly("node", &TableStep::node);
    refuse_copies(step);

    py::class_<TableObject> table(m, "GpuTable", "Steps that are submitted to one stream in one call.");
    table
        .def(py::init<Device&, const py::object&, const py::iterable&>(), py::arg("device"),
             py::arg("stream").none(true), py::arg("steps"))
        .def("__len__", [](const TableObject& t) { return t.table.size(); })
        .def_property_readonly("status_address", [](const TableObject& t) { return address(t.table.status()); })
        .def(
            "enqueue",
            [](TableObject& t, int64_t first, int64_t count) { without_gil([&] { t.table.enqueue(first, count); }); },
            py::arg("first") = 0, py::arg("count") = -1)
        .def("finish", [](TableObject& t) { without_gil([&] { t.table.finish(); }); });
    refuse_copies(table);

    py::class_<Launch> launch(m, "GpuLaunch", "A kernel with its parameters, on operands that differ by call.");
    launch
        .def(py::init([](Device& device, const Function& function, const Triple& grid, const Triple& block,
                         uint32_t shared_bytes, size_t operands, const py::sequence& params,
                         uint32_t number) {
                 const LaunchWork work = launch_work(function, grid, block, shared_bytes, false,
                                                     std::vector<uintptr_t>(operands), params);
                 return std::make_unique<Launch>(device, work, operands, number);
             }),
             py::arg("device"), py::arg("function"), py::arg("grid"), py::arg("block"), py::arg("shared_bytes"),
             py::arg("operands"), py::arg("params"), py::arg("number"), py::keep_alive<1, 3>())
        .def("run", &run_launch, py::arg("operands"), py::arg("status"), py::arg("stream").none(true) = py::none());
    refuse_copies(launch);

    py::class_<StatusBlock> status(m, "StatusBlock", "What the kernels of a stream report to.");
    status
        .def(py::init<Device&, const Stream*>(), py::arg("device"), py::arg("stream").none(true))
        .def_property_readonly("address", [](const StatusBlock& s) { return address(s.address()); })
        .def("take", [](StatusBlock& s) {
            uint32_t word = 0;
            without_gil([&] { word = s.take(); });
            return word;
        });
    refuse_copies(status);
    m.attr("STATUS_BYTES") = kStatusBytes;

    py::class_<PinnedMemory> pinned(m, "PinnedMemory", "Page-locked memory of the host, given back with the object.");
    pinned.def(py::init<Device&, size_t>(), py::arg("device"), py::arg("bytes"))
        .def("release", &PinnedMemory::release)
        .def_property_readonly("address", [](const PinnedMemory& p) { return address(p.address()); })
        .def_property_readonly("nbytes", &PinnedMemory::bytes);
    refuse_copies(pinned);
}

}  // namespace ost::hip
