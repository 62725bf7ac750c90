#include "transport/mpi/mpi_choice.h"

#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

namespace horoacc {
namespace {

// rank, shim, the launcher's process on this host, the launcher; a shell may stand in between.
constexpr int kAncestors = 6;

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// The ABI that a file of this name has; nothing if it is no libmpi.
std::optional<MpiFlavour> FlavourOfFile(const std::string& path) {
  const std::string name = BaseName(path);
  if (name.starts_with("libmpi.so.40")) return MpiFlavour::kOpenMpi;
  // Debian calls it libmpich; Intel MPI and MVAPICH share the ABI and the name.
  if (name.starts_with("libmpi.so.12") || name.starts_with("libmpich.so.12")) {
    return MpiFlavour::kMpich;
  }
  return std::nullopt;
}

/// The same for a name that may be a link without a version.
std::optional<MpiFlavour> FlavourOfSetting(const std::string& path) {
  if (const auto flavour = FlavourOfFile(path)) return flavour;
  std::error_code error;
  return FlavourOfFile(std::filesystem::canonical(path, error).string());
}

/// The folder above bin/ of the ancestor that is a part of an MPI's launcher; "" without one.
std::string LauncherPrefix() {
  pid_t process = ::getppid();
  for (int k = 0; k < kAncestors && process > 1; ++k) {
    const std::string entry = "/proc/" + std::to_string(process);
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink(entry + "/exe", error);
    if (error) return "";
    for (const char* name : {"prte", "orte", "mpirun", "mpiexec", "hydra"}) {
      if (program.filename().string().starts_with(name)) {
        return program.parent_path().parent_path().string();
      }
    }
    std::ifstream file(entry + "/stat");
    std::string line;
    std::getline(file, line);
    // The name in parentheses may hold anything, parentheses too.
    std::istringstream fields(line.substr(std::min(line.rfind(')') + 1, line.size())));
    char state = 0;
    if (!(fields >> state >> process)) return "";
  }
  return "";
}

const char* TitleOf(MpiFlavour flavour) {
  return flavour == MpiFlavour::kOpenMpi ? "Open MPI" : "MPICH";
}

/// The names by which the loader may find it.
std::vector<std::string> FileNames(MpiFlavour flavour) {
  if (flavour == MpiFlavour::kOpenMpi) return {"libmpi.so.40"};
  return {"libmpi.so.12", "libmpich.so.12"};
}

/// Files of the flavour in the folders.
std::vector<std::string> FilesIn(const std::vector<std::string>& folders, MpiFlavour flavour) {
  std::vector<std::string> found;
  for (const std::string& folder : folders) {
    for (const std::string& name : FileNames(flavour)) {
      const std::string path = folder + "/" + name;
      if (::access(path.c_str(), R_OK) == 0) found.push_back(path);
    }
  }
  return found;
}

void Append(std::vector<std::string>& list, const std::vector<std::string>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

Error Contradiction(const std::string& first, const std::string& second, MpiFlavour launcher) {
  std::string text = first + ", but " + second;
  if (launcher == MpiFlavour::kMpich) {
    text +=
        "; to use MPICH, set HOROACC_MPI_LIBRARY and, for mpi4py, MPI4PY_LIBMPI to its "
        "libmpi.so.12, and leave MPI4PY_MPIABI unset";
  } else {
    text +=
        "; to use Open MPI, unset HOROACC_MPI_LIBRARY, MPI4PY_LIBMPI and MPI4PY_MPIABI, or set the "
        "first two to its libmpi.so.40";
  }
  return MakeError(ErrorKind::kConfig, text);
}

}  // namespace

const char* NameOf(MpiFlavour flavour) {
  return flavour == MpiFlavour::kOpenMpi ? "openmpi" : "mpich";
}

MpiSurroundings LookAround(const std::string& setting, const std::string& python_prefix,
                           const std::string& launcher) {
  MpiSurroundings around;
  around.setting = setting;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* mapped) {
        static_cast<std::vector<std::string>*>(mapped)->emplace_back(info->dlpi_name);
        return 0;
      },
      &around.mapped);
  for (const MpiFlavour flavour : {MpiFlavour::kOpenMpi, MpiFlavour::kMpich}) {
    if (launcher == NameOf(flavour)) around.launcher = flavour;
  }
  const auto add = [](std::vector<std::string>& folders, const std::string& prefix) {
    if (!prefix.empty()) Append(folders, {prefix + "/lib", prefix + "/lib64"});
  };
  if (around.launcher) add(around.launcher_folders, LauncherPrefix());
  add(around.folders, python_prefix);
  return around;
}

Result<MpiChoice> ChooseMpi(const MpiSurroundings& surroundings) {
  const auto launcher = surroundings.launcher;
  const std::string started =
      launcher ? std::string("the job was started by ") + TitleOf(*launcher) + "'s launcher" : "";

  for (const std::string& path : surroundings.mapped) {
    const auto flavour = FlavourOfFile(path);
    if (!flavour) continue;
    const std::string loaded = std::string(TitleOf(*flavour)) + " is loaded already (" + path + ")";
    if (launcher && *launcher != *flavour) return Contradiction(loaded, started, *launcher);
    return MpiChoice{*flavour, {path}, loaded};
  }

  std::vector<std::string> set;
  std::optional<MpiFlavour> set_flavour;
  if (!surroundings.setting.empty()) {
    set_flavour = FlavourOfSetting(surroundings.setting);
    if (!set_flavour) {
      return MakeError(ErrorKind::kConfig,
                       "HOROACC_MPI_LIBRARY is '" + surroundings.setting +
                           "'; it must name a libmpi.so.40 (Open MPI) or libmpi.so.12 (MPICH)");
    }
    if (launcher && *launcher != *set_flavour) {
      return Contradiction("HOROACC_MPI_LIBRARY is " + surroundings.setting, started, *launcher);
    }
    set.push_back(surroundings.setting);
  }
  if (launcher) {
    std::vector<std::string> libraries = FilesIn(surroundings.launcher_folders, *launcher);
    Append(libraries, set);
    Append(libraries, FilesIn(surroundings.folders, *launcher));
    Append(libraries, FileNames(*launcher));
    return MpiChoice{*launcher, std::move(libraries), started};
  }
  if (set_flavour) return MpiChoice{*set_flavour, std::move(set), "HOROACC_MPI_LIBRARY says so"};
  for (const MpiFlavour flavour : {MpiFlavour::kOpenMpi, MpiFlavour::kMpich}) {
    auto libraries = FilesIn(surroundings.folders, flavour);
    if (!libraries.empty()) {
      return MpiChoice{flavour, std::move(libraries), "it lies beside this Python"};
    }
  }
  return MpiChoice{MpiFlavour::kOpenMpi, FileNames(MpiFlavour::kOpenMpi), "it is the default"};
}

}  // namespace horoacc
