// Python's view of the runtime objects: helpers that its parts share. Failures become the public exceptions of
// ostinato.ir.errors; addresses and handles cross as integers.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>

#include "failure.h"

namespace ost::hip {

namespace py = pybind11;

void bind_gpu(py::module_& m);  // all of it
void bind_device(py::module_& m);
void bind_memory(py::module_& m);
void bind_table(py::module_& m);

inline void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }
inline uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// Runs without the GIL. Not gil_scoped_release: a thread that asks for the GIL after the interpreter has ended is
// unwound from there, which a destructor would turn into an abort.
template <class Work>
void without_gil(Work&& work) {
    std::exception_ptr error;
    PyThreadState* const state = PyEval_SaveThread();
    try {
        work();
    } catch (...) {
        error = std::current_exception();
    }
    PyEval_RestoreThread(state);
    if (error) std::rethrow_exception(error);
}

template <class Class>
void refuse_copies(Class& type) {
    type.def("__reduce_ex__", [](const py::object& self, int) -> py::object {
        const std::string name = py::str(py::type::of(self).attr("__name__"));
        throw Failure(Kind::kLogic, "a " + name + " cannot be copied or pickled", "make another one");
    });
}

template <class Class>
void finishes_with_scope(Class& type) {
    type.def("__enter__", [](const py::object& self) { return self; });
    type.def("__exit__", [](const py::object& self, const py::args&) { self.attr("finish")(); });
}

}  // namespace ost::hip
