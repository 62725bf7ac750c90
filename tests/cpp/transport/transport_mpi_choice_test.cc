// Which MPI a process uses, for every kind of surroundings.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/check.h"
#include "transport/mpi/mpi_choice.h"
#include "transport/mpi/mpi_session.h"
#include "transport/net/fd.h"

using namespace horoacc;

namespace {

/// A folder with empty files of the given names, gone with the object.
class Folder {
 public:
  explicit Folder(std::initializer_list<const char*> names) {
    std::string name = (std::filesystem::temp_directory_path() / "horoacc-XXXXXX").string();
    CHECK(::mkdtemp(name.data()) != nullptr);
    path = name;
    for (const char* file : names) {
      CHECK(Fd(::open((path + "/" + file).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)));
    }
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path;
};

MpiChoice Chosen(const MpiSurroundings& around) {
  auto choice = ChooseMpi(around);
  if (!choice.ok()) std::fprintf(stderr, "%s\n", choice.error().message.c_str());
  CHECK(choice.ok());
  return choice.value();
}

std::string Refused(const MpiSurroundings& around) {
  const auto choice = ChooseMpi(around);
  CHECK(!choice.ok());
  CHECK(choice.error().kind == ErrorKind::kConfig);
  return choice.error().message;
}

}  // namespace

TEST(TheLoadedOneWins) {
  MpiSurroundings around;
  around.mapped = {"", "/lib/libc.so.6", "/a/libmpi.so.12.3.4"};
  around.setting = "/b/libmpi.so.40";
  const MpiChoice choice = Chosen(around);
  CHECK(choice.flavour == MpiFlavour::kMpich);
  CHECK_EQ(choice.libraries.front(), std::string("/a/libmpi.so.12.3.4"));
  CHECK(choice.reason.find("loaded already") != std::string::npos);
}

TEST(TheLauncherDecidesAndTheFoldersComeFirst) {
  const Folder folder({"libmpi.so.40", "libmpi.so.12"});
  MpiSurroundings around;
  around.folders = {"/nowhere", folder.path};
  around.launcher = MpiFlavour::kMpich;
  MpiChoice choice = Chosen(around);
  CHECK(choice.flavour == MpiFlavour::kMpich);
  CHECK_EQ(choice.libraries.front(), folder.path + "/libmpi.so.12");
  CHECK_EQ(choice.libraries.back(), std::string("libmpich.so.12"));  // left to the loader

  around.launcher = MpiFlavour::kOpenMpi;
  choice = Chosen(around);
  CHECK(choice.flavour == MpiFlavour::kOpenMpi);
  CHECK_EQ(choice.libraries.front(), folder.path + "/libmpi.so.40");

  around.folders = {};
  CHECK_EQ(Chosen(around).libraries.front(), std::string("libmpi.so.40"));
}

TEST(TheLaunchersOwnComesBeforeTheSettingBeforePythons) {
  const Folder launcher({"libmpi.so.40", "libmpi.so.12"});
  const Folder python({"libmpi.so.40"});
  MpiSurroundings around;
  around.launcher = MpiFlavour::kOpenMpi;
  around.launcher_folders = {launcher.path};
  around.setting = "/opt/libmpi.so.40";
  around.folders = {python.path};
  const std::vector<std::string> all = {launcher.path + "/libmpi.so.40", around.setting,
                                        python.path + "/libmpi.so.40", "libmpi.so.40"};
  CHECK(Chosen(around).libraries == all);
  around.launcher_folders = {"/nowhere"};
  CHECK_EQ(Chosen(around).libraries.front(), around.setting);
}

TEST(TheSettingMayBeALinkWithoutAVersion) {
  const Folder folder({"libmpi.so.12.3.4"});
  std::filesystem::create_symlink("libmpi.so.12.3.4", folder.path + "/libmpi.so");
  MpiSurroundings around;
  around.setting = folder.path + "/libmpi.so";
  CHECK(Chosen(around).flavour == MpiFlavour::kMpich);
}

TEST(TheSettingDecidesWithoutALauncher) {
  MpiSurroundings around;
  around.setting = "/opt/libmpich.so.12";
  const MpiChoice choice = Chosen(around);
  CHECK(choice.flavour == MpiFlavour::kMpich);
  CHECK_EQ(choice.libraries.size(), 1);
  CHECK_EQ(choice.libraries.front(), around.setting);
}

TEST(WhatLiesBesidePythonServesOtherwise) {
  const Folder mpich({"libmpi.so.12"});
  const Folder both({"libmpi.so.12", "libmpi.so.40"});
  MpiSurroundings around;
  around.folders = {mpich.path};
  CHECK(Chosen(around).flavour == MpiFlavour::kMpich);
  around.folders = {both.path};
  CHECK(Chosen(around).flavour == MpiFlavour::kOpenMpi);
  around.folders = {};
  CHECK(Chosen(around).flavour == MpiFlavour::kOpenMpi);
}

TEST(ContradictionsAreErrorsThatSayWhatToSet) {
  MpiSurroundings around;
  around.launcher = MpiFlavour::kMpich;
  around.mapped = {"/x/libmpi.so.40"};
  std::string text = Refused(around);
  CHECK(text.find("Open MPI is loaded already (/x/libmpi.so.40)") != std::string::npos);
  CHECK(text.find("MPI4PY_LIBMPI to its libmpi.so.12") != std::string::npos);
  around.mapped = {};
  around.launcher = MpiFlavour::kOpenMpi;
  around.setting = "/y/libmpi.so.12";
  text = Refused(around);
  CHECK(text.find("HOROACC_MPI_LIBRARY is /y/libmpi.so.12") != std::string::npos);
  around.setting = "/y/libsomething.so";
  CHECK(Refused(around).find("must name a libmpi.so.40") != std::string::npos);
}

TEST(SurroundingsOfThisProcess) {
  const MpiSurroundings around = LookAround("here", "/prefix", "mpich");
  CHECK(around.launcher == MpiFlavour::kMpich);
  CHECK(!LookAround("", "", "horoaccrun").launcher);
  CHECK_EQ(around.setting, std::string("here"));
  CHECK_EQ(around.folders.front(), std::string("/prefix/lib"));
  bool libc = false;
  for (const std::string& path : around.mapped) libc |= path.find("libc.so") != std::string::npos;
  CHECK(libc);
}

TEST(WhatCannotBeLoadedIsExplained) {
  MpiOptions options;
  options.plugin = "/nowhere";
  options.choice = {MpiFlavour::kMpich, {"/nowhere/libmpi.so.12"}, "HOROACC_MPI_LIBRARY says so"};
  auto opened = MpiSession::Open(options);
  CHECK(!opened.ok());
  CHECK(opened.error().kind == ErrorKind::kConfig);
  CHECK(opened.error().message.find("/nowhere/libmpi.so.12") != std::string::npos);
  options.choice.libraries = {"libc.so.6"};  // loads; but then there is no plug-in
  opened = MpiSession::Open(options);
  CHECK(!opened.ok());
  CHECK(opened.error().message.find("plug-in for mpich") != std::string::npos);
}
