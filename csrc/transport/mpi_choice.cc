#include "transport/mpi_choice.h"

#include <link.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <utility>

namespace horoacc {
namespace {

constexpr const char* kLauncherVariables[] = {
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE",
    "HYDI_CONTROL_FD",      "MPI_LOCALRANKID"};

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

std::optional<MpiFlavour> FlavourOfLauncher(const std::map<std::string, std::string>& environment) {
  const auto has = [&](const char* name) { return environment.contains(name); };
  if (has("OMPI_COMM_WORLD_RANK")) return MpiFlavour::kOpenMpi;
  if (has("PMI_RANK") || has("PMI_SIZE") || has("HYDI_CONTROL_FD") || has("MPI_LOCALRANKID")) {
    return MpiFlavour::kMpich;
  }
  if (has("PMIX_RANK")) return MpiFlavour::kOpenMpi;  // srun --mpi=pmix
  return std::nullopt;
}

const char* TitleOf(MpiFlavour flavour) {
  return flavour == MpiFlavour::kOpenMpi ? "Open MPI" : "MPICH";
}

std::vector<std::string> FileNames(MpiFlavour flavour) {
  if (flavour == MpiFlavour::kOpenMpi) return {"libmpi.so.40"};
  return {"libmpi.so.12", "libmpich.so.12"};
}

/// Files of the flavour in the folders, then its names for the loader to find.
std::vector<std::string> Candidates(MpiFlavour flavour, const std::vector<std::string>& folders) {
  std::vector<std::string> found;
  for (const std::string& folder : folders) {
    for (const std::string& name : FileNames(flavour)) {
      const std::string path = folder + "/" + name;
      if (::access(path.c_str(), R_OK) == 0) found.push_back(path);
    }
  }
  for (const std::string& name : FileNames(flavour)) found.push_back(name);
  return found;
}

Error Contradiction(const std::string& first, const std::string& second, MpiFlavour launcher) {
  std::string text = first + ", but " + second;
  if (launcher == MpiFlavour::kMpich) {
    text +=
        "; to use MPICH, set HOROACC_MPI_LIBRARY to its libmpi.so.12 and, for mpi4py, "
        "MPI4PY_MPIABI=mpich and MPI4PY_LIBMPI to the same file";
  } else {
    text +=
        "; to use Open MPI, unset HOROACC_MPI_LIBRARY and MPI4PY_LIBMPI, or set both to its "
        "libmpi.so.40";
  }
  return MakeError(ErrorKind::kConfig, text);
}

}  // namespace

const char* NameOf(MpiFlavour flavour) {
  return flavour == MpiFlavour::kOpenMpi ? "openmpi" : "mpich";
}

MpiSurroundings LookAround(const std::string& setting, const std::string& python_prefix) {
  MpiSurroundings around;
  around.setting = setting;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* mapped) {
        static_cast<std::vector<std::string>*>(mapped)->emplace_back(info->dlpi_name);
        return 0;
      },
      &around.mapped);
  for (const char* name : kLauncherVariables) {
    if (const char* value = std::getenv(name)) around.environment[name] = value;
  }
  if (!python_prefix.empty()) around.folders.push_back(python_prefix + "/lib");
  return around;
}

Result<MpiChoice> ChooseMpi(const MpiSurroundings& surroundings) {
  const auto launcher = FlavourOfLauncher(surroundings.environment);
  const std::string started =
      launcher ? std::string("the job was started by ") + TitleOf(*launcher) + "'s launcher" : "";

  for (const std::string& path : surroundings.mapped) {
    const auto flavour = FlavourOfFile(path);
    if (!flavour) continue;
    const std::string loaded = std::string(TitleOf(*flavour)) + " is loaded already (" + path + ")";
    if (launcher && *launcher != *flavour) return Contradiction(loaded, started, *launcher);
    return MpiChoice{*flavour, {path}, loaded};
  }

  std::optional<MpiFlavour> set;
  if (!surroundings.setting.empty()) {
    set = FlavourOfFile(surroundings.setting);
    if (!set) {
      return MakeError(ErrorKind::kConfig,
                       "HOROACC_MPI_LIBRARY is '" + surroundings.setting +
                           "'; it must name a libmpi.so.40 (Open MPI) or libmpi.so.12 (MPICH)");
    }
    if (launcher && *launcher != *set) {
      return Contradiction("HOROACC_MPI_LIBRARY is " + surroundings.setting, started, *launcher);
    }
    return MpiChoice{*set, {surroundings.setting}, "HOROACC_MPI_LIBRARY says so"};
  }
  if (launcher) {
    return MpiChoice{*launcher, Candidates(*launcher, surroundings.folders), started};
  }
  for (const MpiFlavour flavour : {MpiFlavour::kOpenMpi, MpiFlavour::kMpich}) {
    auto libraries = Candidates(flavour, surroundings.folders);
    if (libraries.size() == FileNames(flavour).size()) continue;  // in none of the folders
    return MpiChoice{flavour, std::move(libraries), "it lies beside this Python"};
  }
  return MpiChoice{MpiFlavour::kOpenMpi, Candidates(MpiFlavour::kOpenMpi, {}), "it is the default"};
}

}  // namespace horoacc
