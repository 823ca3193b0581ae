// Graphs, scopes, arenas and diagnostics as Python sees them, and the translation of failures.
#include <optional>

#include "arena.h"
#include "attribution.h"
#include "bind.h"
#include "capture.h"
#include "deferral.h"

namespace ost::hip {

namespace {

const char* error_class(Kind kind) {
    switch (kind) {
        case Kind::kInvalid: return "ConfigError";
        case Kind::kLogic: return "LifecycleError";
        case Kind::kCapacity: return "CapacityError";
        case Kind::kUnavailable: return "DeviceUnavailable";
        case Kind::kBounds: return "BoundsError";
        default: return "BackendError";
    }
}

void translate(std::exception_ptr error) {
    try {
        if (error) std::rethrow_exception(error);
    } catch (const Failure& failure) {
        const py::object type = py::module_::import("ostinato.ir.errors").attr(error_class(failure.kind));
        const auto or_none = [](const std::string& text) -> py::object {
            if (text.empty()) return py::none();
            return py::str(text);
        };
        const py::object made = type(failure.what(), py::arg("hint") = or_none(failure.hint),
                                     py::arg("node") = or_none(failure.node));
        PyErr_SetObject(type.ptr(), made.ptr());
    }
}

const char* type_name(gpu::NodeType type) {
    switch (type) {
        case gpu::NodeType::kKernel: return "kernel";
        case gpu::NodeType::kCopy: return "copy";
        case gpu::NodeType::kFill: return "fill";
        case gpu::NodeType::kHost: return "host";
        case gpu::NodeType::kGraph: return "graph";
        case gpu::NodeType::kEmpty: return "empty";
        case gpu::NodeType::kEventWait: return "event_wait";
        case gpu::NodeType::kEventRecord: return "event_record";
        case gpu::NodeType::kAllocate: return "allocate";
        case gpu::NodeType::kFree: return "free";
        default: return "other";
    }
}

// What Python holds: the executable and, where it was asked for, what was captured.
struct GraphObject {
    GraphExecutable graph;
    std::optional<CapturedGraph> captured;
    const CapturedGraph& record() const {
        if (!captured)
            throw Failure(Kind::kLogic, "the graph was captured without a record of its nodes",
                          "capture with record=True");
        return *captured;
    }
};

std::function<void()> callable(const py::object& callback) {
    if (callback.is_none()) return nullptr;
    if (PyCallable_Check(callback.ptr()) == 0)
        throw Failure(Kind::kInvalid, "a capture's callback is called without arguments");
    return [callback] { callback(); };
}

std::tuple<uint32_t, uint32_t, uint32_t> triple(const gpu::Extent& e) { return {e.x, e.y, e.z}; }

void bind_graphs(py::module_& m) {
    py::class_<CapturedNode>(m, "CapturedNode", "A node of a captured graph as the backend tells it.")
        .def_property_readonly("type", [](const CapturedNode& n) { return type_name(n.type); })
        .def_property_readonly("function", [](const CapturedNode& n) { return address(n.function); })
        .def_property_readonly("grid", [](const CapturedNode& n) { return triple(n.grid); })
        .def_property_readonly("block", [](const CapturedNode& n) { return triple(n.block); })
        .def_readonly("shared_bytes", &CapturedNode::shared_bytes)
        .def_property_readonly("arguments",
                               [](const CapturedNode& n) -> py::object {
                                   if (!n.arguments_known) return py::none();
                                   py::list list;
                                   for (const auto& argument : n.arguments)
                                       list.append(py::bytes(argument.data(), argument.size()));
                                   return py::tuple(list);
                               })
        .def_property_readonly(
            "to", [](const CapturedNode& n) { return address(n.type == gpu::NodeType::kFill ? n.fill.to : n.copy.to); })
        .def_property_readonly("source", [](const CapturedNode& n) { return address(n.copy.from); })
        .def_property_readonly("nbytes",
                               [](const CapturedNode& n) {
                                   return n.type == gpu::NodeType::kFill ? n.fill.elements * n.fill.element_bytes
                                                                         : n.copy.bytes;
                               })
        .def_property_readonly("value", [](const CapturedNode& n) { return n.fill.value; });

    py::class_<GraphObject> graph(m, "HipGraphExecutable", "A captured graph, launched again and again.");
    graph
        .def_static(
            "capture",
            [](const Stream& stream, const py::object& callback, bool record) {
                CapturedGraph captured;
                GraphExecutable made =
                    GraphExecutable::capture(stream, callable(callback), record ? &captured : nullptr);
                return GraphObject{std::move(made), record ? std::optional(std::move(captured)) : std::nullopt};
            },
            py::arg("stream"), py::arg("callback"), py::arg("record") = false)
        .def_property_readonly("defined", [](const GraphObject& g) { return g.graph.defined(); })
        .def_property_readonly(
            "device", [](const GraphObject& g) -> Device& { return g.graph.device(); },
            py::return_value_policy::reference)
        .def_property_readonly("node_count", [](const GraphObject& g) { return g.graph.node_count(); })
        .def_property_readonly("nodes", [](const GraphObject& g) { return g.record().nodes; })
        .def_property_readonly("edges", [](const GraphObject& g) { return g.record().edges; })
        .def_property_readonly("early_edges", [](const GraphObject& g) { return g.record().early; })
        .def(
            "launch", [](const GraphObject& g, const Stream& stream) { without_gil([&] { g.graph.launch(stream); }); },
            py::arg("stream"))
        .def(
            "update",
            [](GraphObject& g, const Stream& stream, const py::object& callback) {
                return g.graph.update(stream, callable(callback));
            },
            py::arg("stream"), py::arg("callback"))
        .def("release", [](GraphObject& g) { g.graph.release(); })
        .def("move",
             [](GraphObject& g) { return GraphObject{std::move(g.graph), std::exchange(g.captured, std::nullopt)}; });
    refuse_copies(graph);
    m.def("capturing", &capturing);
}

void bind_scopes(py::module_& m) {
    py::class_<DeferralCounters>(m, "DeferralCounters", "What a scope holds back and has held back.")
        .def_readonly("pending_blocks", &DeferralCounters::pending_blocks)
        .def_readonly("pending_bytes", &DeferralCounters::pending_bytes)
        .def_readonly("total_blocks", &DeferralCounters::total_blocks)
        .def_readonly("total_bytes", &DeferralCounters::total_bytes)
        .def_readonly("flushes", &DeferralCounters::flushes);

    py::class_<DeferredDeallocationScope> memory(m, "DeferredHipDeallocationScope",
                                                 "Holds what this thread frees until a stream is done.");
    memory.def(py::init<const Stream&, size_t>(), py::arg("stream"), py::arg("capacity"), py::keep_alive<1, 2>())
        .def("finish", &DeferredDeallocationScope::finish)
        .def_property_readonly("counters", &DeferredDeallocationScope::counters);
    refuse_copies(memory);
    finishes_with_scope(memory);

    py::class_<ScopedDeferredStream> stream(m, "ScopedDeferredHipStream",
                                            "Sends this thread's work to a stream and holds what it frees.");
    stream.def(py::init<const Stream&, size_t>(), py::arg("stream"), py::arg("capacity"), py::keep_alive<1, 2>())
        .def("finish", &ScopedDeferredStream::finish)
        .def_property_readonly("counters", &ScopedDeferredStream::counters);
    refuse_copies(stream);
    finishes_with_scope(stream);
    m.def("routed_stream", &routed_stream, py::arg("device"), py::return_value_policy::reference,
          "The stream to which this thread sends work of a device that names none, None for the default one.");
}

void bind_arenas(py::module_& m) {
    py::class_<ActivationArena> arena(m, "HipActivationArena",
                                      "One allocation of a fixed address, handed out in slices.");
    arena.def(py::init<const Stream&, size_t>(), py::arg("stream"), py::arg("capacity"), py::keep_alive<1, 2>())
        .def(
            "allocate_slice",
            [](ActivationArena& a, size_t bytes, size_t alignment) {
                return address(a.allocate_slice(bytes, alignment));
            },
            py::arg("bytes"), py::arg("alignment") = 256)
        .def("reset_plan", &ActivationArena::reset_plan)
        .def_property_readonly("address", [](const ActivationArena& a) { return address(a.address()); })
        .def_property_readonly("planned_bytes", &ActivationArena::planned_bytes)
        .def_property_readonly("capacity_bytes", &ActivationArena::capacity_bytes);
    refuse_copies(arena);

    py::class_<StreamOrderedBuffer> buffer(m, "StreamOrderedHipBuffer",
                                           "Memory that a stream allocates and frees in its order.");
    buffer.def(py::init<const Stream&, size_t>(), py::arg("stream"), py::arg("bytes"), py::keep_alive<1, 2>())
        .def("release", &StreamOrderedBuffer::release)
        .def_property_readonly("address", [](const StreamOrderedBuffer& b) { return address(b.address()); })
        .def_property_readonly("nbytes", &StreamOrderedBuffer::bytes)
        .def_static("supported", &stream_ordered_supported, py::arg("device"))
        .def_static("set_release_threshold", &set_release_threshold, py::arg("device"), py::arg("bytes"))
        .def_static("trim", &trim_stream_ordered, py::arg("device"), py::arg("keep_bytes") = 0)
        .def_static(
            "usage",
            [](const Device& device) {
                const PoolUsage usage = pool_usage(device);
                py::dict found;
                found["reserved"] = usage.reserved;
                found["reserved_high"] = usage.reserved_high;
                found["used"] = usage.used;
                found["used_high"] = usage.used_high;
                found["release_threshold"] = usage.release_threshold;
                return found;
            },
            py::arg("device"));
    refuse_copies(buffer);
}

void bind_diagnostics(py::module_& m) {
    struct Tag {  // entered and left as a scope of Python
        explicit Tag(Source source) : source(source) {}
        Source source;
        std::optional<SourceScope> scope;
    };
    py::class_<Tag>(m, "SourceScope", "Names who asks for memory and copies layouts, for the thread and the scope.")
        .def(py::init([](const std::string& name) {
                 for (int i = 0; i < kSources; ++i) {
                     if (name == source_name(static_cast<Source>(i)))
                         return std::make_unique<Tag>(static_cast<Source>(i));
                 }
                 throw Failure(Kind::kInvalid, "there is no source " + name);
             }),
             py::arg("source"))
        .def("__enter__",
             [](const py::object& self) {
                 auto& tag = py::cast<Tag&>(self);
                 tag.scope.emplace(tag.source);
                 return self;
             })
        .def("__exit__", [](Tag& tag, const py::args&) { tag.scope.reset(); });
    m.def("sources", [] {
        std::vector<std::string> names;
        for (int i = 0; i < kSources; ++i) names.emplace_back(source_name(static_cast<Source>(i)));
        return names;
    });
    m.def("current_source", [] { return source_name(current_source()); });
    m.def("set_allocation_diagnostics", &set_allocation_diagnostics, py::arg("enabled"));
    m.def("set_copy_diagnostics", &set_copy_diagnostics, py::arg("enabled"));
    m.def("clear_diagnostics", &clear_diagnostics);
    m.def("note_strided_copy", &note_strided_copy, py::arg("element_bytes"), py::arg("shape"), py::arg("strides"));
    m.def("allocation_records", [] {
        py::list list;
        for (const AllocationRecord& r : allocation_records())
            list.append(py::make_tuple(source_name(r.source), r.device, r.bytes, r.requests));
        return list;
    });
    m.def("copy_records", [] {
        py::list list;
        for (const CopyRecord& r : copy_records()) {
            list.append(py::make_tuple(source_name(r.source), r.element_bytes, py::tuple(py::cast(r.shape)),
                                       py::tuple(py::cast(r.strides)), r.calls, r.elements, r.bytes));
        }
        return list;
    });
}

}  // namespace

void bind_memory(py::module_& m) {
    bind_graphs(m);
    bind_scopes(m);
    bind_arenas(m);
    bind_diagnostics(m);
}

void bind_gpu(py::module_& m) {
    py::register_local_exception_translator(translate);
    bind_device(m);
    bind_memory(m);
    bind_table(m);
}

}  // namespace ost::hip
