#include "transport/data/tagged/transport_plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "transport/data/tagged/tagged_links.h"

namespace horoacc {
namespace {

constexpr size_t kLongestAddress = 4096;
constexpr uint32_t kLeastTags = 32767;

/// An open transport, closed with its object. Its library stays loaded.
struct Transport {
  const ha_transport_plugin* plugin = nullptr;
  void* self = nullptr;

  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  ~Transport() {
    if (self != nullptr) plugin->close(self, 0);
  }
};

Error Failure(const std::string& path, const std::string& why) {
  return MakeError(ErrorKind::kConfig, "the transport '" + path + "': " + why);
}

Result<const ha_transport_plugin*> Load(const std::string& path) {
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Failure(path, std::string("cannot be loaded: ") + ::dlerror());
  const auto entry =
      reinterpret_cast<ha_transport_plugin_entry>(::dlsym(handle, HA_TRANSPORT_PLUGIN_SYMBOL));
  if (entry == nullptr) {
    return Failure(path, "has no function " HA_TRANSPORT_PLUGIN_SYMBOL ", so it is none");
  }
  const ha_transport_plugin* const plugin = entry();
  if (plugin == nullptr) return Failure(path, "has no table of functions");
  if (plugin->version != HA_TRANSPORT_PLUGIN_VERSION) {
    return Failure(path, "has version " + std::to_string(plugin->version) +
                             " of the contract, and this HoroACC version " +
                             std::to_string(HA_TRANSPORT_PLUGIN_VERSION));
  }
  const bool whole = plugin->open && plugin->address && plugin->connect && plugin->wait_fd &&
                     plugin->close && plugin->calls.send && plugin->calls.receive &&
                     plugin->calls.test && plugin->calls.cancel;
  if (!whole || !plugin->name) return Failure(path, "lacks a function, or a name");
  if (plugin->most_tag < kLeastTags) return Failure(path, "has too few tags");
  return plugin;
}

/// Opens the transport; returns its name and, after a zero, this rank's address.
Result<std::string> OpenTransport(const std::string& path, Bootstrap& bootstrap,
                                  Transport& transport) {
  HA_ASSIGN(transport.plugin, Load(path));
  ha_transport_error error = {};
  if (transport.plugin->open(&transport.self, bootstrap.rank(), bootstrap.size(), &error) != 0) {
    transport.self = nullptr;
    return Failure(path, error.message);
  }
  std::string address(kLongestAddress, '\0');
  size_t count = 0;
  if (transport.plugin->address(transport.self, address.data(), address.size(), &count, &error) !=
      0) {
    return Failure(path, error.message);
  }
  address.resize(std::min(count, address.size()));
  return std::string(transport.plugin->name) + '\0' + address;
}

}  // namespace

Result<std::unique_ptr<DataLinks>> LoadDataLinks(Bootstrap& bootstrap, const std::string& path,
                                                 uint64_t epoch, int64_t deadline_ns) {
  auto transport = std::make_shared<Transport>();
  HA_ASSIGN(std::vector<std::string> blobs,
            bootstrap.AllGather(OpenTransport(path, bootstrap, *transport), "", deadline_ns));
  std::vector<ha_piece> addresses;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    std::string& each = blobs[rank];
    const size_t name = std::strlen(transport->plugin->name);
    if (each.compare(0, name + 1, blobs[bootstrap.rank()], 0, name + 1) != 0) {
      return MakeError(ErrorKind::kConfig,
                       "setting 'transport_plugin' differs: rank " + std::to_string(rank) +
                           " has the transport '" + each.c_str() + "', rank " +
                           std::to_string(bootstrap.rank()) + " '" + transport->plugin->name + "'",
                       rank);
    }
    addresses.push_back({each.data() + name + 1, each.size() - name - 1});
  }
  ha_transport_error error = {};
  if (transport->plugin->connect(transport->self, addresses.data(), &error) != 0) {
    return Failure(path, error.message);
  }
  TaggedCarrier carrier;
  carrier.calls = transport->plugin->calls;
  carrier.self = transport->self;
  carrier.rank = bootstrap.rank();
  carrier.size = bootstrap.size();
  carrier.most_tag = transport->plugin->most_tag;
  carrier.wait_fd = transport->plugin->wait_fd(transport->self);
  carrier.kind = transport->plugin->name;
  carrier.epoch = epoch;
  carrier.owner = std::move(transport);
  return MakeTaggedLinks(std::move(carrier));
}

}  // namespace horoacc
