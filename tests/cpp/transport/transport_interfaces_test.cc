// Which interface of a host its data links use, and how hosts tell each other what they have.
#include <string>
#include <vector>

#include "support/check.h"
#include "transport/net/interfaces.h"

using namespace horoacc;

namespace {

Interface Make(const std::string& name, const std::string& address, const std::string& network,
               int64_t megabits = 0) {
  return {name, address, network, megabits, name == "lo"};
}

InterfaceOffer OfHost(const std::string& host, int local_rank, std::vector<Interface> interfaces) {
  interfaces.insert(interfaces.begin(), Make("lo", "127.0.0.1", "127.0.0.0"));
  return {host, local_rank, std::move(interfaces)};
}

std::string ChosenNames(const std::vector<InterfaceOffer>& offers, const std::string& wanted = "") {
  const auto chosen = ChooseInterfaces(offers, wanted);
  if (!chosen.ok()) return "error: " + chosen.error().message;
  std::string names;
  for (const Interface& each : chosen.value()) names += each.name + "@" + each.address + " ";
  return names;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(OneHostUsesItsLoopback) {
  const auto eth = Make("eth0", "10.0.0.1", "10.0.0.0", 1000);
  CHECK_EQ(ChosenNames({OfHost("a", 0, {eth}), OfHost("a", 1, {eth})}),
           "lo@127.0.0.1 lo@127.0.0.1 ");
}

TEST(HostsMeetOnTheFastestNetworkThatReachesMost) {
  const auto bridge = Make("docker0", "172.17.0.1", "172.17.0.0", 10000);
  const auto offer = [&](const std::string& host, const std::string& last) {
    return OfHost(host, 0,
                  {bridge, Make("own", "192.168." + last + ".1", "192.168." + last + ".0", 100000),
                   Make("slow", "10.0.0." + last, "10.0.0.0", 1000),
                   Make("fast", "10.1.0." + last, "10.1.0.0", 25000)});
  };
  CHECK_EQ(ChosenNames({offer("a", "1"), offer("b", "2")}), "fast@10.1.0.1 fast@10.1.0.2 ");
  // Speeds that no driver tells: the first.
  CHECK_EQ(
      ChosenNames(
          {OfHost("a", 0, {Make("x", "10.0.0.1", "10.0.0.0"), Make("y", "10.1.0.1", "10.1.0.0")}),
           OfHost("b", 0, {Make("x", "10.0.0.2", "10.0.0.0"), Make("y", "10.1.0.2", "10.1.0.0")})}),
      "x@10.0.0.1 x@10.0.0.2 ");
  CHECK(Has(ChosenNames({OfHost("a", 0, {bridge}), OfHost("b", 0, {bridge})}),
            "host a has no network"));
}

TEST(NamedInterfacesAreTheRailsOfLocalRanks) {
  const auto offer = [](const std::string& host, int local_rank, const std::string& last) {
    return OfHost(
        host, local_rank,
        {Make("eth0", "10.0.0." + last, "10.0.0.0"), Make("eth1", "10.1.0." + last, "10.1.0.0")});
  };
  CHECK_EQ(
      ChosenNames({offer("a", 0, "1"), offer("a", 1, "1"), offer("b", 0, "2"), offer("b", 1, "2")},
                  "eth1, eth0"),
      "eth1@10.1.0.1 eth0@10.0.0.1 eth1@10.1.0.2 eth0@10.0.0.2 ");
  CHECK_EQ(ChosenNames({offer("a", 0, "1"), offer("a", 1, "1")}, "ib0,eth1"),
           "eth1@10.1.0.1 eth1@10.1.0.1 ");
  const std::string error = ChosenNames({offer("a", 0, "1")}, "ib0");
  CHECK(Has(error, "host a") && Has(error, "'ib0'") && Has(error, "eth0 (10.0.0.1)"));
}

TEST(AnIdentityIsThatOfTheNetworkNamespace) {
  const std::string own = NetworkIdentity();
  CHECK_EQ(own, NetworkIdentity());
  CHECK(own.find('#') != std::string::npos && Has(own, "net:["));
  // A name that two machines share does not make them one.
  const auto eth = Make("eth0", "10.0.0.1", "10.0.0.0");
  const auto other = Make("eth0", "10.0.0.2", "10.0.0.0");
  CHECK_EQ(ChosenNames({OfHost("node#1", 0, {eth}), OfHost("node#2", 0, {other})}),
           "eth0@10.0.0.1 eth0@10.0.0.2 ");
  CHECK(Has(ChosenNames({OfHost("node#1", 0, {}), OfHost("node#2", 0, {})}), "host node has no"));
}

TEST(OffersTravelAsText) {
  const auto own = ListInterfaces();
  CHECK(own.ok() && !own.value().empty());
  const InterfaceOffer offer{"host with spaces", 3, own.value()};
  const auto back = UnpackOffer(PackOffer(offer));
  CHECK(back.ok());
  CHECK_EQ(back.value().host, offer.host);
  CHECK_EQ(back.value().local_rank, 3);
  CHECK(back.value().interfaces == offer.interfaces);
  CHECK(!UnpackOffer("").ok());
}
