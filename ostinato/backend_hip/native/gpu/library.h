// Finding and opening one vendor library, and the report of it that `ostinato doctor` prints.
#pragma once

#include <string>
#include <vector>

#include "gpu_api.h"

namespace ost::gpu {

enum class Finding { kFound, kNotFound, kIncomplete };

struct LibraryReport {
    std::string role;     // runtime, compiler, blas, collective
    std::string name;     // libamdhip64
    std::string path;     // where it was found
    std::string version;  // empty where the library cannot tell without a device
    Finding finding = Finding::kNotFound;
    std::string problem;  // why it cannot be used; empty where it can
};

// Where libraries are looked for: in these folders, in order, then where the system's loader looks, unless `sealed`.
struct Search {
    std::vector<std::string> folders;
    bool sealed = false;
};

// An opened library. It stays open for the life of the process: drivers start threads that outlive any owner.
class Library {
  public:
    // `name` without ending; of several versions in one folder the newest is taken. `versions`: what to ask the
    // system's loader for, newest first. Fills the report but for its role.
    Library(const char* name, const Search& search, const std::vector<std::string>& versions, LibraryReport& report);

    bool opened() const { return handle_ != nullptr; }
    void* symbol(const char* name) const;  // null when there is none
    // The address of a function that must be there; notes a missing one in the report.
    void* required(const char* name, LibraryReport& report) const;
    const std::string& folder() const { return folder_; }

  private:
    void* handle_ = nullptr;
    std::string folder_;
};

// Files of a folder called NAME.so or NAME.so.VERSION, newest version first; full paths.
std::vector<std::string> library_files(const std::string& folder, const std::string& name);

// librccl and libnccl have the one function in common that is asked of them.
void open_collective(CollectiveApi& api, std::vector<LibraryReport>& reports, const Search& search, const char* name,
                     const std::vector<std::string>& versions);

void open_amd(Api& api, std::vector<LibraryReport>& reports, const Search& search);
void open_nvidia(Api& api, std::vector<LibraryReport>& reports, const Search& search);

}  // namespace ost::gpu
