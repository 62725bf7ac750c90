#pragma once
// Which MPI a process must use. With two MPIs in a process, or one that did not start the job, the
// ranks do not see each other; so the choice is made before any is loaded.
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace horoacc {

enum class MpiFlavour { kOpenMpi, kMpich };

/// "openmpi" or "mpich", as in the names of the plug-ins.
[[nodiscard]] const char* NameOf(MpiFlavour flavour);

/// The inputs of the choice.
struct MpiSurroundings {
  std::string setting;                 ///< HOROACC_MPI_LIBRARY: a path or a soname; "" if not set
  std::vector<std::string> mapped;     ///< paths of the shared objects in this process
  std::optional<MpiFlavour> launcher;  ///< the MPI whose launcher started the job, if any
  std::vector<std::string> launcher_folders;  ///< where that launcher's own libmpi may lie
  std::vector<std::string> folders;  ///< where wheels put libmpi: lib/ of the Python prefix
};

/// The surroundings of this process. `python_prefix` is sys.prefix, or ""; `launcher` is "openmpi",
/// "mpich", or anything else for a job that no MPI started.
[[nodiscard]] MpiSurroundings LookAround(const std::string& setting,
                                         const std::string& python_prefix,
                                         const std::string& launcher);

struct MpiChoice {
  MpiFlavour flavour = MpiFlavour::kOpenMpi;
  std::vector<std::string> libraries;  ///< for dlopen, the first that loads
  std::string reason;                  ///< for messages: "it is loaded already", ...
};

/// The libmpi that is mapped already, else that of the launcher that started the job, else the
/// setting's, else the first that is found. kConfig if two of these are of different flavours: it
/// says what to set.
Result<MpiChoice> ChooseMpi(const MpiSurroundings& surroundings);

}  // namespace horoacc
