// Python's view of ostinato.h: module ostinato.backend_hip._native. Addresses and steps cross as plain integers and
// tuples; the objects that give them meaning live in Python. No conversion is made quietly: a parameter is an int or a
// float, and which of the two decides the field of ost_param it lands in.
#include <pthread.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gpu/bind.h"
#include "isa.h"
#include "kernel.h"
#include "ostinato.h"

namespace py = pybind11;

namespace {

constexpr auto kSignalInterval = std::chrono::milliseconds(50);

PyObject* native_error = nullptr;  // the exception type, kept for ever
std::atomic<unsigned long> main_thread{0};  // as Python numbers threads; a forked child's is the thread that forked

[[noreturn]] void raise(ost_status status, const std::string& text, size_t step = OST_NO_STEP) {
    const py::object error =
        py::handle(native_error)(static_cast<int>(status), text, step == OST_NO_STEP ? -1 : static_cast<int64_t>(step));
    PyErr_SetObject(native_error, error.ptr());
    throw py::error_already_set();
}

void check(ost_status status) {
    if (status != OST_OK) raise(status, ost_last_error());
}

py::object make_error_type() {
    py::dict body;
    body["__module__"] = "ostinato.backend_hip._native";
    body["__doc__"] =
        "A failure of the native layer. status: number of ost_status; text: what happened; step: number of the step in "
        "its table, -1 where none is concerned.";
    body["__init__"] = py::cpp_function(
        [](const py::object& self, int status, const std::string& text, int64_t step) {
            self.attr("status") = status;
            self.attr("text") = text;
            self.attr("step") = step;
            self.attr("args") = py::make_tuple(status, text, step);
        },
        py::name("initialise"), py::is_method(py::none()), py::arg("status"), py::arg("text"), py::arg("step") = -1);
    body["__str__"] = py::cpp_function([](const py::object& self) { return self.attr("text"); }, py::name("to_text"),
                                       py::is_method(py::none()));
    const py::object type = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyType_Type));
    return type("NativeError", py::make_tuple(py::handle(PyExc_RuntimeError)), body);
}

class Device {
  public:
    Device(uint32_t threads, const std::string& isa) {
        const ost_device_options options = {sizeof(ost_device_options), threads, isa.c_str()};
        check(ost_device_create(&options, &device_));
    }
    ~Device() { ost_device_destroy(device_); }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    ost_device* get() const { return device_; }
    ost_device_info info() const {
        ost_device_info info = {};
        info.struct_size = sizeof info;
        check(ost_device_query(device_, &info));
        return info;
    }
    uintptr_t allocate(size_t bytes, size_t alignment) {
        void* address = nullptr;
        check(ost_memory_allocate(device_, bytes, alignment, &address));
        return reinterpret_cast<uintptr_t>(address);
    }
    void free(uintptr_t address) { check(ost_memory_free(device_, reinterpret_cast<void*>(address))); }
    uint64_t launches() const { return ost_device_steps_run(device_); }
    uint32_t kernel(const std::string& name) const {
        uint32_t number = 0;
        check(ost_kernel_find(device_, name.c_str(), &number));
        return number;
    }

  private:
    ost_device* device_ = nullptr;
};

// What a run needs of Python: when to look at signals, whose functions to call, and the thread's state, which stands
// here while the run does without the GIL.
struct Hosting {
    std::chrono::steady_clock::time_point next;
    PyObject* functions;  // a tuple
    PyThreadState* state;
    bool raised;  // the exception is set in that state
};

// Signal handlers run on the main thread only; elsewhere there is nothing to look at. A thread that took the GIL for it
// while the interpreter ends would be ended within the run.
bool handles_signals() { return main_thread.load(std::memory_order_relaxed) == PyThread_get_thread_ident(); }

// Runs without the GIL between two steps; takes it about every 50 ms to let Python's signal handlers run.
int poll_signals(void* context) {
    auto& hosting = *static_cast<Hosting*>(context);
    const auto now = std::chrono::steady_clock::now();
    if (now < hosting.next) return 0;
    hosting.next = now + kSignalInterval;
    const py::gil_scoped_acquire gil;
    hosting.raised = PyErr_CheckSignals() != 0;
    return hosting.raised ? 1 : 0;
}

// A step that is a Python function: with the GIL, on the thread that runs the table.
int call_function(void* context, uint32_t number) {
    auto& hosting = *static_cast<Hosting*>(context);
    PyEval_RestoreThread(hosting.state);  // as in Table::run, and for the same reason no gil_scoped_acquire
    PyObject* const found = PyObject_CallNoArgs(PyTuple_GET_ITEM(hosting.functions, number));
    hosting.raised = found == nullptr;
    Py_XDECREF(found);
    hosting.state = PyEval_SaveThread();
    return hosting.raised ? 1 : 0;
}

uint32_t to_number(const py::handle& value, const char* what) {
    if (!PyLong_Check(value.ptr())) throw py::type_error(std::string(what) + " must be an int");
    const unsigned long long number = PyLong_AsUnsignedLongLong(value.ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (number > std::numeric_limits<uint32_t>::max()) throw py::value_error(std::string(what) + " exceeds 32 bits");
    return static_cast<uint32_t>(number);
}

std::vector<uint32_t> to_numbers(const py::handle& values, const char* what) {
    std::vector<uint32_t> numbers;
    for (const py::handle value : values) numbers.push_back(to_number(value, what));
    return numbers;
}

ost_param to_param(const py::handle& value) {
    ost_param param = {};
    if (PyLong_Check(value.ptr())) {
        param.i = PyLong_AsLongLong(value.ptr());
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    } else if (PyFloat_Check(value.ptr())) {
        param.f = PyFloat_AsDouble(value.ptr());
    } else {
        throw py::type_error("a step's params are Python ints and floats, found " +
                             std::string(py::str(py::type::handle_of(value))));
    }
    return param;
}

ost_operand to_operand(const py::handle& value) {
    const auto pair = py::cast<py::tuple>(value);
    if (pair.size() != 2) throw py::value_error("an operand is (address, bytes)");
    return {reinterpret_cast<void*>(py::cast<uintptr_t>(pair[0])), py::cast<uint64_t>(pair[1])};
}

class Table {
  public:
    Table(const Device& device, const py::iterable& steps, const py::tuple& functions) : functions_(functions) {
        struct Owned {
            std::vector<ost_operand> operands;
            std::vector<ost_param> params;
            std::vector<uint32_t> waits;
            std::vector<uint32_t> signals;
        };
        std::vector<std::unique_ptr<Owned>> owned;
        std::vector<ost_step> list;
        for (const py::handle item : steps) {
            const auto step = py::cast<py::tuple>(item);
            if (step.size() != 7) {
                throw py::value_error("a step is (kind, kernel, lane, operands, params, waits, signals)");
            }
            owned.push_back(std::make_unique<Owned>());
            Owned& o = *owned.back();
            for (const py::handle operand : step[3]) o.operands.push_back(to_operand(operand));
            for (const py::handle param : step[4]) o.params.push_back(to_param(param));
            o.waits = to_numbers(step[5], "an event");
            o.signals = to_numbers(step[6], "an event");
            list.push_back({sizeof(ost_step), to_number(step[0], "kind"), to_number(step[1], "kernel"),
                            to_number(step[2], "lane"), static_cast<uint32_t>(o.operands.size()),
                            static_cast<uint32_t>(o.params.size()), static_cast<uint32_t>(o.waits.size()),
                            static_cast<uint32_t>(o.signals.size()), o.operands.data(), o.params.data(), o.waits.data(),
                            o.signals.data()});
        }
        for (const ost_step& step : list) {
            if (step.kind == OST_STEP_CALL && step.kernel >= functions.size()) {
                throw py::value_error("a step calls a function that is not given");
            }
        }
        size_ = list.size();
        size_t failed = OST_NO_STEP;
        const ost_status status = ost_table_create(device.get(), list.data(), list.size(), &table_, &failed);
        if (status != OST_OK) raise(status, ost_last_error(), failed);
    }
    ~Table() { ost_table_destroy(table_); }
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;

    size_t size() const { return size_; }

    void run(size_t first, int64_t count) {
        if (count < 0) count = first <= size_ ? static_cast<int64_t>(size_ - first) : 0;
        Hosting hosting = {std::chrono::steady_clock::now() + kSignalInterval, functions_.ptr(), nullptr, false};
        const ost_host host = {sizeof(ost_host), handles_signals() ? poll_signals : nullptr, call_function, &hosting};
        size_t failed = OST_NO_STEP;
        // Not gil_scoped_release: a thread that asks for the GIL after the interpreter has ended is unwound from there,
        // which a destructor would turn into an abort. Nothing in between throws.
        hosting.state = PyEval_SaveThread();
        const ost_status status = ost_table_run_hosted(table_, first, static_cast<size_t>(count), &host, &failed);
        PyEval_RestoreThread(hosting.state);
        if (hosting.raised) throw py::error_already_set();
        if (status != OST_OK) raise(status, ost_last_error(), failed);
    }
    void interrupt() { check(ost_table_interrupt(table_)); }

  private:
    ost_table* table_ = nullptr;
    size_t size_ = 0;
    py::tuple functions_;
};

// A kernel with its parameters, run on operands that change from call to call. A run makes no object and allocates
// nothing; what it needs stands on the stack, so that threads may share a launch.
class Launch {
  public:
    Launch(const Device& device, uint32_t kernel, const py::iterable& params) : device_(device.get()), kernel_(kernel) {
        for (const py::handle param : params) params_.push_back(to_param(param));
    }

    void run(const py::tuple& operands) const {
        ost_operand list[kMaxOperands];
        const size_t count = operands.size();
        if (count > kMaxOperands) throw py::value_error("a kernel has at most 32 operands");
        for (size_t i = 0; i < count; ++i) {
            PyObject* const pair = PyTuple_GET_ITEM(operands.ptr(), static_cast<Py_ssize_t>(i));
            if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
                throw py::value_error("an operand is (address, bytes)");
            }
            list[i].address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(pair, 0));
            if (PyErr_Occurred() == nullptr) list[i].bytes = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pair, 1));
            if (PyErr_Occurred() != nullptr) throw py::error_already_set();
        }
        const ost_step step = {sizeof(ost_step),
                               OST_STEP_LAUNCH,
                               kernel_,
                               0,
                               static_cast<uint32_t>(count),
                               static_cast<uint32_t>(params_.size()),
                               0,
                               0,
                               list,
                               params_.data(),
                               nullptr,
                               nullptr};
        PyThreadState* const state = PyEval_SaveThread();  // see Table::run
        const ost_status status = ost_step_run(device_, &step);
        PyEval_RestoreThread(state);
        if (status != OST_OK) raise(status, ost_last_error(), 0);
    }

  private:
    static constexpr size_t kMaxOperands = 32;
    ost_device* device_;
    uint32_t kernel_;
    std::vector<ost_param> params_;
};

py::list usable_units() {
    py::list names;
    for (const ost::Unit& unit : ost::units()) {
        if (unit.usable) names.append(unit.name);
    }
    return names;
}

// The same for every unit, so they are read from the portable one.
py::dict kernel_names() {
    py::dict names;
    const ost::KernelUnit unit = ost::units().front().kernels();
    for (uint32_t f = 0; f < unit.count; ++f) {
        const ost::KernelTable table = unit.families[f]();
        for (uint32_t i = 0; i < table.count; ++i) {
            const ost::KernelEntry& e = table.entries[i];
            names[e.name] = py::make_tuple(e.operand_count, e.param_count, e.optional_operands);
        }
    }
    return names;
}

// Units differ in what the compiler is told, not in sources.
py::dict kernel_sources() {
    py::dict sources;
    const ost::KernelUnit unit = ost::units().front().kernels();
    if (unit.count != ost::kernel_family_hash_count) throw std::runtime_error("kernel_hashes.py and registry.cpp differ");
    for (uint32_t f = 0; f < unit.count; ++f) {
        const ost::KernelTable table = unit.families[f]();
        const ost::KernelFamilyHash& hash = ost::kernel_family_hashes[f];
        for (uint32_t i = 0; i < table.count; ++i)
            sources[table.entries[i].name] = py::make_tuple(hash.family, hash.sources);
    }
    return sources;
}

py::dict dtype_numbers() {
    py::dict numbers;
    const std::pair<const char*, ost_dtype> list[] = {
        {"f32", OST_F32},   {"f16", OST_F16},   {"bf16", OST_BF16}, {"f64", OST_F64},   {"i64", OST_I64},
        {"i32", OST_I32},   {"i8", OST_I8},     {"u8", OST_U8},     {"bool", OST_BOOL}, {"q8_0", OST_Q8_0},
        {"q4_0", OST_Q4_0}, {"q4_1", OST_Q4_1}, {"q5_0", OST_Q5_0}, {"q5_1", OST_Q5_1}, {"iq4_nl", OST_IQ4_NL},
        {"q4_k", OST_Q4_K}, {"q5_k", OST_Q5_K}, {"q6_k", OST_Q6_K},
    };
    for (const auto& entry : list) numbers[entry.first] = static_cast<int>(entry.second);
    return numbers;
}

}  // namespace

PYBIND11_MODULE(_native, m) {
    m.doc() = "Native host device: step tables, kernels, worker threads. See native/ostinato.h.";
    native_error = make_error_type().release().ptr();
    m.attr("NativeError") = py::handle(native_error);
#ifdef __clang__
    m.attr("compiler") = __VERSION__;
#else
    m.attr("compiler") = "GCC " __VERSION__;
#endif
    main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
    static const int installed = pthread_atfork(nullptr, nullptr, [] { main_thread = PyThread_get_thread_ident(); });
    (void)installed;

    m.def("abi_version", [] { return OST_ABI_VERSION; }, "Version of the step-table boundary.");
    m.def("isa_available", usable_units, "Kernel units this build and CPU can run, in ascending order of preference.");
    m.def("dtype_numbers", dtype_numbers, "Numbers of ost_dtype by dtype name.");
    m.def("kernel_names", kernel_names, "name -> (operand count, param count, bits of the operands that may be null).");
    m.def("kernel_sources", kernel_sources, "name -> (family, hash of the sources it was compiled from).");

    py::class_<Device>(m, "Device", "A host device: one kernel unit, a pool of worker threads, memory.")
        .def(py::init<uint32_t, const std::string&>(), py::arg("threads") = 0, py::arg("isa") = "auto")
        .def_property_readonly("threads", [](const Device& d) { return d.info().threads; })
        .def_property_readonly("isa", [](const Device& d) { return d.info().isa; })
        .def_property_readonly("available", [](const Device& d) { return d.info().available; })
        .def_property_readonly("cpu", [](const Device& d) { return d.info().cpu; })
        .def("allocate", &Device::allocate, py::arg("bytes"), py::arg("alignment") = 64,
             "Address of zeroed memory; it lives until free() or the end of the device.")
        .def("free", &Device::free, py::arg("address"))
        .def_property_readonly("launches", &Device::launches, "How many launches ran on their own, outside of tables.")
        .def("kernel", &Device::kernel, py::arg("name"), "Number of a kernel for the steps of a table.");

    py::class_<Table>(m, "Table", "Steps copied and checked once, run many times without Python.")
        .def(py::init<const Device&, const py::iterable&, const py::tuple&>(), py::arg("device"), py::arg("steps"),
             py::arg("functions") = py::tuple(), py::keep_alive<1, 2>())
        .def("__len__", &Table::size)
        .def("run", &Table::run, py::arg("first") = 0, py::arg("count") = -1,
             "Runs steps [first, first + count), all that follow for count -1, without the GIL but for those that are "
             "functions: a step of kind call is functions[kernel]().")
        .def("interrupt", &Table::interrupt, "Stops the run in progress, or the next one, between two steps.");

    py::class_<Launch>(m, "Launch", "A kernel with its parameters, run on operands that change from call to call.")
        .def(py::init<const Device&, uint32_t, const py::iterable&>(), py::arg("device"), py::arg("kernel"),
             py::arg("params"), py::keep_alive<1, 2>())
        .def("run", &Launch::run, py::arg("operands"),
             "Checks the operands, (address, bytes) each, and runs, without the GIL; allocates nothing.");

    ost::hip::bind_gpu(m);
}
