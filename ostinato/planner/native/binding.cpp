// The module ostinato.planner._solver: integers in, integers out. The problem's numbers cross as buffers of 64-bit integers (array.array("q")), and the
// solve runs without the GIL; about every 50 ms the calling thread takes it to let signal handlers run and to ask whether it shall stop.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "driver.h"

namespace py = pybind11;

namespace {

using ost::plan::Buffer;
using ost::plan::Limits;
using ost::plan::Result;
using ost::plan::Stop;

std::vector<int64_t> to_numbers(const py::buffer& buffer, const char* what) {
    const py::buffer_info info = buffer.request();
    if (info.ndim != 1 || info.itemsize != sizeof(int64_t) || (info.format != "q" && info.format != "l")) {
        throw py::type_error(std::string(what) + " must be a flat array of 64-bit integers");
    }
    if (info.size > 0 && info.strides[0] != static_cast<py::ssize_t>(sizeof(int64_t))) {
        throw py::type_error(std::string(what) + " must be contiguous");
    }
    const auto* numbers = static_cast<const int64_t*>(info.ptr);
    return std::vector<int64_t>(numbers, numbers + info.size);
}

std::vector<Buffer> to_buffers(const py::buffer& lower, const py::buffer& upper, const py::buffer& size,
                               const py::buffer& alignment, const py::buffer& fixed) {
    const std::vector<int64_t> begin = to_numbers(lower, "lower");
    const std::vector<int64_t> end = to_numbers(upper, "upper");
    const std::vector<int64_t> bytes = to_numbers(size, "size");
    const std::vector<int64_t> multiple = to_numbers(alignment, "alignment");
    const std::vector<int64_t> offset = to_numbers(fixed, "fixed");
    if (end.size() != begin.size() || bytes.size() != begin.size() || multiple.size() != begin.size() ||
        offset.size() != begin.size()) {
        throw py::value_error("the arrays differ in length");
    }
    std::vector<Buffer> buffers;
    buffers.reserve(begin.size());
    for (size_t i = 0; i < begin.size(); ++i) {
        const bool placeable = begin[i] < end[i] && bytes[i] >= 0 && multiple[i] >= 1;
        if (!placeable || (offset[i] >= 0 && offset[i] % multiple[i] != 0)) {
            throw py::value_error("buffer " + std::to_string(i) + " cannot be placed");
        }
        buffers.push_back({begin[i], end[i], bytes[i], multiple[i], offset[i]});
    }
    return buffers;
}

// The calling thread without the GIL, which it may take in between.
//
// Not gil_scoped_release: Python ends a thread that asks for the GIL after the interpreter has ended by unwinding it from there, and a destructor would turn
// that into an abort. Frames below own Python objects, so it must not be unwound at all: it waits for the end of the process, as Python 3.14 has it.
class Unlocked {
  public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    ~Unlocked() { lock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

    void lock() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            while (true) std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }
    void unlock() { state_ = PyEval_SaveThread(); }

  private:
    PyThreadState* state_;
};

// A Python exception is set, and the solve is to end with nothing.
struct Raised : std::exception {};

// Signal handlers run on the main thread only; elsewhere PyErr_CheckSignals does nothing.
class Poll {
  public:
    explicit Poll(const py::object& stop) : stop_(stop) {}
    bool raised() const { return raised_; }

    bool operator()() {
        raised_ = raised_ || PyErr_CheckSignals() != 0;
        if (raised_ || ended_ || stop_.is_none()) return raised_ || ended_;
        PyObject* const answer = PyObject_CallNoArgs(stop_.ptr());
        const int truth = answer == nullptr ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        raised_ = truth < 0;
        return ended_ = truth != 0;
    }

  private:
    const py::object& stop_;
    bool raised_ = false;  // a Python exception is set
    bool ended_ = false;   // the caller wants no more
};

py::tuple solve(const py::buffer& lower, const py::buffer& upper, const py::buffer& size, const py::buffer& alignment,
                const py::buffer& fixed, int64_t capacity, int64_t nodes, double seconds, int32_t threads, uint64_t seed,
                const py::object& stop) {
    const std::vector<Buffer> buffers = to_buffers(lower, upper, size, alignment, fixed);
    Poll poll(stop);
    Result result;
    try {
        Unlocked unlocked;
        const Stop until(seconds, [&] {
            unlocked.lock();
            const bool end = poll();
            unlocked.unlock();
            if (poll.raised()) throw Raised();
            return end;
        });
        result = ost::plan::solve(buffers, capacity, Limits{nodes, threads, seed}, until);
    } catch (const Raised&) {
        throw py::error_already_set();
    }
    return py::make_tuple(result.offsets, result.height, result.bound, result.bound_time, result.nodes, result.stopped,
                          result.finder);
}

}  // namespace

PYBIND11_MODULE(_solver, m) {
    m.doc() = "The planner's native solver. See native/driver.h.";
    m.def("solve", solve, py::arg("lower"), py::arg("upper"), py::arg("size"), py::arg("alignment"), py::arg("fixed"), py::arg("capacity"),
          py::arg("nodes"), py::arg("seconds"), py::arg("threads"), py::arg("seed"), py::arg("stop"),
          "(offsets, height, bound, bound_time, nodes, stopped, finder) of the lowest placement found. Negative: no fixed offset, capacity or limit. "
          "Raises OverflowError where a placement could pass 2^63 - 1.");
}
