// dlopen and what can be said when it fails. The first error that names a file which exists is the one worth telling:
// "no such file" of the later names would hide it.
#include "library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>

namespace ost::gpu {

namespace {

std::vector<long> version_of(const std::string& ending) {
    std::vector<long> numbers;
    const char* at = ending.c_str();
    while (*at != '\0') {
        char* next = nullptr;
        numbers.push_back(std::strtol(at + (*at == '.'), &next, 10));
        if (next == at || next == at + 1) break;
        at = next;
    }
    return numbers;
}

std::string opened_path(void* handle) {
    link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr) return "";
    return map->l_name;
}

}  // namespace

std::vector<std::string> library_files(const std::string& folder, const std::string& name) {
    std::vector<std::pair<std::vector<long>, std::string>> found;
    if (DIR* directory = opendir(folder.c_str())) {
        const std::string stem = name + ".so";
        while (const dirent* entry = readdir(directory)) {
            const std::string file = entry->d_name;
            if (file.compare(0, stem.size(), stem) != 0) continue;
            const std::string ending = file.substr(stem.size());
            if (!ending.empty() && (ending[0] != '.' || ending.find_first_not_of(".0123456789") != std::string::npos)) {
                continue;
            }
            found.emplace_back(version_of(ending), folder + "/" + file);
        }
        closedir(directory);
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a > b; });
    std::vector<std::string> paths;
    for (auto& entry : found) paths.push_back(std::move(entry.second));
    return paths;
}

Library::Library(const char* name, const Search& search, const std::vector<std::string>& versions,
                 LibraryReport& report) {
    report.name = name;
    std::vector<std::string> candidates;
    for (const std::string& folder : search.folders) {
        for (std::string& file : library_files(folder, name)) candidates.push_back(std::move(file));
    }
    const size_t from_folders = candidates.size();
    if (!search.sealed) {
        for (const std::string& version : versions) candidates.push_back(std::string(name) + ".so" + version);
    }
    std::string first_problem;
    for (size_t i = 0; i < candidates.size() && handle_ == nullptr; ++i) {
        handle_ = dlopen(candidates[i].c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle_ != nullptr) continue;
        const char* text = dlerror();
        const std::string problem = text == nullptr ? "the loader gave no reason" : text;
        const bool absent = i >= from_folders && problem.find("No such file") != std::string::npos &&
                            problem.compare(0, candidates[i].size(), candidates[i]) == 0;
        if (!absent && first_problem.empty()) first_problem = problem;
    }
    if (handle_ == nullptr) {
        report.finding = Finding::kNotFound;
        report.problem = first_problem.empty() ? std::string(name) + " was not found" : first_problem;
        return;
    }
    report.finding = Finding::kFound;
    report.path = opened_path(handle_);
    folder_ = report.path.substr(0, report.path.find_last_of('/') + 1);
}

void* Library::symbol(const char* name) const { return handle_ == nullptr ? nullptr : dlsym(handle_, name); }

void* Library::required(const char* name, LibraryReport& report) const {
    void* address = symbol(name);
    if (address == nullptr && handle_ != nullptr) {
        report.finding = Finding::kIncomplete;
        report.problem += report.problem.empty() ? report.name + " was found but has no symbol " : ", ";
        report.problem += name;
    }
    return address;
}

void open_collective(CollectiveApi& api, std::vector<LibraryReport>& reports, const Search& search, const char* name,
                     const std::vector<std::string>& versions) {
    LibraryReport report;
    report.role = "collective";
    const Library library(name, search, versions, report);
    api.version = reinterpret_cast<int (*)(int*)>(library.required("ncclGetVersion", report));
    int version = 0;  // 22807: 2.28.7
    if (report.finding == Finding::kFound && api.version(&version) == 0) {
        report.version = std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
                         std::to_string(version % 100);
    }
    reports.push_back(report);
}

}  // namespace ost::gpu
