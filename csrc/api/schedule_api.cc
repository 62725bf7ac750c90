// The C contract over the generated schedules: proofs and predictions, without an engine.
#include <cmath>
#include <span>
#include <string>

#include "api/horoacc.h"
#include "api/report.h"
#include "schedule/audit.h"
#include "schedule/simulate/simulator.h"

namespace {

using horoacc::ErrorKind;
using horoacc::Guarded;
using horoacc::MakeError;
using horoacc::PutText;
using horoacc::Result;
using horoacc::Status;
using namespace horoacc::schedule;

Result<Plan> ToPlan(const Algorithm& algorithm, const ha_plan& plan) {
  if (plan.hosts == 0) return MakeError(ErrorKind::kInvalid, "there are no hosts");
  uint64_t ranks = 0;
  for (size_t h = 0; h < plan.hosts; ++h) ranks += plan.ranks_per_host[h];
  if (ranks > kMostRanks) {
    return MakeError(ErrorKind::kInvalid,
                     "a schedule has at most " + std::to_string(kMostRanks) + " ranks");
  }
  Plan made{.topology = Topology({plan.ranks_per_host, plan.ranks_per_host + plan.hosts}),
            .root = plan.root,
            .trees = plan.trees};
  HA_TRY(CheckPlan(algorithm, made));
  return made;
}

Result<Fabric> ToFabric(const ha_fabric& fabric) {
  for (const double constant :
       {fabric.local_bandwidth, fabric.memory_bandwidth, fabric.stream_bandwidth,
        fabric.nic_bandwidth, fabric.reduce_bandwidth, fabric.slice_bytes}) {
    if (!std::isfinite(constant) || constant <= 0) {
      return MakeError(ErrorKind::kInvalid, "bandwidths and slices are positive");
    }
  }
  for (const double constant : {fabric.local_latency, fabric.network_latency, fabric.overhead}) {
    if (!std::isfinite(constant) || constant < 0) {
      return MakeError(ErrorKind::kInvalid, "times are not negative");
    }
  }
  if (fabric.nics == 0) return MakeError(ErrorKind::kInvalid, "a host has an interface");
  return Fabric{fabric.local_latency,
                fabric.local_bandwidth,
                fabric.memory_bandwidth,
                fabric.network_latency,
                fabric.stream_bandwidth,
                fabric.nic_bandwidth,
                fabric.nics,
                fabric.reduce_bandwidth,
                fabric.overhead,
                fabric.slice_bytes};
}

double PartOf(const Fraction& fraction) {
  return static_cast<double>(fraction.over) / static_cast<double>(fraction.under);
}

Status RunSimulation(const ha_plan& asked, const ha_fabric& links, double bytes,
                     ha_prediction& prediction) {
  if (!std::isfinite(bytes) || bytes < 0) {
    return MakeError(ErrorKind::kInvalid, "a vector has no such size");
  }
  HA_ASSIGN(const Algorithm* algorithm, FindAlgorithm(asked.algorithm));
  HA_ASSIGN(const Plan plan, ToPlan(*algorithm, asked));
  HA_ASSIGN(const Fabric fabric, ToFabric(links));
  const Prediction made = Predict(*algorithm->make(plan), plan.topology, fabric, bytes);
  prediction = {made.seconds, made.windows, made.events};
  return {};
}

Status RunProof(const ha_plan& asked, ha_proof& proof) {
  HA_ASSIGN(const Algorithm* algorithm, FindAlgorithm(asked.algorithm));
  HA_ASSIGN(const Plan plan, ToPlan(*algorithm, asked));
  HA_ASSIGN(const Audit audit, AuditAlgorithm(*algorithm, plan));
  proof = {audit.proof.steps,
           audit.proof.links.size(),
           audit.proof.rounds,
           PartOf(audit.most_sent),
           0,
           audit.network_messages};
  for (const Fraction& host : audit.host_sends) {
    proof.host_sends = std::max(proof.host_sends, PartOf(host));
  }
  return {};
}

}  // namespace

extern "C" {

size_t ha_algorithms(char* text, size_t capacity) {
  std::string names;
  for (const Algorithm& algorithm : Algorithms()) names += std::string(algorithm.name) + "\n";
  return PutText(names, text, capacity);
}

void ha_fabric_defaults(ha_fabric* fabric) {
  const Fabric usual;
  *fabric = {usual.local_latency,    usual.local_bandwidth,
             usual.memory_bandwidth, usual.network_latency,
             usual.stream_bandwidth, usual.nic_bandwidth,
             usual.reduce_bandwidth, usual.overhead,
             usual.slice_bytes,      usual.nics};
}

int ha_simulate(const ha_plan* plan, const ha_fabric* fabric, double bytes,
                ha_prediction* prediction, ha_error* error) {
  return Guarded(error, [&] { return RunSimulation(*plan, *fabric, bytes, *prediction); });
}

int ha_prove(const ha_plan* plan, ha_proof* proof, ha_error* error) {
  return Guarded(error, [&] { return RunProof(*plan, *proof); });
}

}  // extern "C"
