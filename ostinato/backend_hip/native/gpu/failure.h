// What the runtime objects throw. The kinds are those of the project's contracts; the binding makes Python's exceptions
// of them, which never cross the table below.
#pragma once

#include <stdexcept>
#include <string>

namespace ost::hip {

enum class Kind {
    kInvalid,      // a wrong argument
    kRuntime,      // the backend failed
    kLogic,        // the right call at the wrong time
    kCapacity,     // no room
    kUnavailable,  // no library, no driver, no device
    kBounds,       // an index or a range outside of what there is
};

class Failure : public std::runtime_error {
  public:
    Failure(Kind kind, const std::string& text, const std::string& hint = "", const std::string& node = "")
        : std::runtime_error(text), kind(kind), hint(hint), node(node) {}
    Kind kind;
    std::string hint;
    std::string node;  // of the graph, where one is concerned
};

}  // namespace ost::hip
