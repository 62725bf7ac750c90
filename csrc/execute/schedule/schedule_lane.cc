#include "execute/schedule/schedule_lane.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace horoacc {

using schedule::Buffer;
using schedule::Op;

namespace {

bool Stores(const schedule::Step& step) { return step.dst != Buffer::kNone; }

bool ReducesWhatItReceives(const schedule::Step& step) {
  return step.op == Op::kRecvReduce || step.op == Op::kRecvReduceSend ||
         step.op == Op::kRecvReduceCopySend;
}

}  // namespace

bool StoresPartial(const schedule::Step& step) {
  return Stores(step) && !(step.flags & schedule::kPostscale) &&
         (step.op == Op::kCopy || ReducesWhatItReceives(step));
}

uint32_t Slicing::MostUpTo(uint64_t length) const {
  const uint64_t wanted = (length + slice_bytes - 1) / slice_bytes;
  return static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, most_slices));
}

uint64_t Slicing::LengthOfSlices(uint64_t length) const {
  const uint64_t slices = MostUpTo(length);
  return std::max(kGrain, RoundUpToGrain((length + slices - 1) / slices));
}

uint32_t Slicing::CountOf(uint64_t length) const {
  const uint64_t each = LengthOfSlices(length);
  return std::max<uint32_t>(1, static_cast<uint32_t>((length + each - 1) / each));
}

uint64_t Slicing::LongestUpTo(uint64_t length) const {
  const uint64_t at_most = std::max(slice_bytes, (length + most_slices - 1) / most_slices);
  return std::max(kGrain, std::min(RoundUpToGrain(length), RoundUpToGrain(at_most)));
}

void Lane::Add(LaneStep step) {
  for (SendLink* target : step.targets) {
    if (std::ranges::find(senders_, target) == senders_.end()) senders_.push_back(target);
  }
  steps_.push_back(std::move(step));
}

bool Lane::TakenOf(uint64_t window) const {
  const std::vector<uint64_t>& sent = sent_[window % shared_.places];
  for (size_t k = 0; k < senders_.size(); ++k) {
    if (senders_[k]->taken() < sent[k]) return false;
  }
  return true;
}

Result<bool> Lane::Advance() {
  if (ended()) return false;
  if (k_ == steps_.size()) {
    EndWindow();
    return true;
  }
  bool moved = false;
  if (!begun_) {
    HA_TRY(Begin());
    moved = true;
  }
  if (!made_) {
    HA_ASSIGN(const bool here, Receive());
    if (!here) return moved;
    // One slot a link is enough only if the lane gives the received message back first.
    const bool room = HasRoom();
    if (!room && (shared_.depth > 1 || current().sources.empty())) return moved;
    held_ = !room && !passes_on_;
    HA_TRY(Make());
    for (ReceiveLink* source : current().sources) source->Release();
    made_ = true;
    moved = true;
  }
  if (!HasRoom()) return moved;
  HA_TRY(Post());
  EndSlice();
  return true;
}

std::string Lane::Waiting() const {
  std::string text = "at step " + std::to_string(k_) + " of window " + std::to_string(window_);
  if (!begun_) return text + " waits to begin";
  text += ", slice " + std::to_string(slice_);
  if (made_ || current().sources.empty()) return text + ", waits to send";
  return text + (HasRoom() ? ", waits to receive" : ", waits to receive and to send");
}

void Lane::EndWindow() {
  sent_.resize(shared_.places);
  std::vector<uint64_t>& sent = sent_[window_ % shared_.places];
  sent.clear();
  for (const SendLink* sender : senders_) sent.push_back(sender->posted());
  ++window_;
  k_ = 0;
}

Form Lane::FormOfOwn() const {
  const schedule::Step& step = current().step;
  if (!shared_.map.reduces() || step.src == Buffer::kInput) return Form::kElements;
  if (step.src == Buffer::kScratch) return Form::kPartial;
  if (!shared_.keeps_apart) return Form::kElements;
  const bool finished = shared_.finished[window_ % shared_.places][step.src_chunk % shared_.chunks];
  return finished ? Form::kElements : Form::kPartial;
}

void Lane::List(Buffer buffer, uint32_t chunk, Form form, std::vector<Extent>& extents) {
  extents.clear();
  if (buffer == Buffer::kNone) return;
  const uint32_t size = buffer == Buffer::kScratch ? shared_.scratch_chunks : shared_.chunks;
  const size_t place = window_ % shared_.places;
  std::byte* apart = nullptr;
  if (buffer == Buffer::kScratch) apart = shared_.scratch[place];
  if (buffer == Buffer::kOutput && form == Form::kPartial && shared_.keeps_apart) {
    apart = shared_.apart[place];
  }
  for (uint32_t k = 0; k < current().step.count; ++k) {
    shared_.map.Append({buffer, (chunk + k) % size, window_, form, apart}, extents);
  }
}

// Works out where the step's chunks lie, in which form, and how they are cut.
Status Lane::Begin() {
  const schedule::Step& step = current().step;
  const bool reduces = shared_.map.reduces();
  const bool scaled_before = step.flags & schedule::kPrescaleOwn;
  own_form_ = FormOfOwn();
  received_form_ = result_form_ = Form::kElements;
  if (reduces && ReducesWhatItReceives(step) && !(step.flags & schedule::kPrescaleReceived)) {
    received_form_ = Form::kPartial;
  }
  if (reduces && !(step.flags & schedule::kPostscale)) {
    if (step.op == Op::kSend) {
      result_form_ = scaled_before ? Form::kPartial : own_form_;
    } else if (step.op == Op::kCopy || ReducesWhatItReceives(step)) {
      result_form_ = Form::kPartial;
    } else if (step.dst == Buffer::kScratch) {
      received_form_ = result_form_ = Form::kPartial;  // sums that only pass through here
    }
  }
  List(step.src, step.src_chunk, own_form_, own_);
  List(step.dst, step.dst_chunk, result_form_, stored_);
  const std::vector<Extent>& shape = step.src == Buffer::kNone ? stored_ : own_;
  // An input can be sent from where it lies if it is not scaled or widened on the way.
  const bool as_it_is = own_form_ == result_form_ || shared_.map.widest() == 1;
  const auto unscaled = [this](const Extent& extent) {
    return shared_.map.tensor(extent.tensor).scale.pre == 1.0;
  };
  passes_on_ = Stores(step);
  if (step.op == Op::kSend) {
    passes_on_ = !scaled_before || (as_it_is && std::ranges::all_of(shape, unscaled));
  }
  const uint64_t length = shared_.map.LengthOf(shape);
  slice_ = 0;
  slices_ = shared_.slicing.CountOf(length);
  slice_length_ = shared_.slicing.LengthOfSlices(length);
  const bool places = !current().sources.empty() && step.src == Buffer::kNone;
  for (uint32_t k = 0; k < slices_ && !current().sources.empty(); ++k) {
    slice_ = k;
    CutSlice(shape, received_form_, own_slice_);
    if (places) CutSlice(stored_, result_form_, stored_slice_);
    const uint64_t bytes = shared_.map.BytesOf(own_slice_.extents, received_form_);
    const ReceivePieces where = places ? ReceivePieces(stored_slice_.pieces) : ReceivePieces();
    for (ReceiveLink* source : current().sources) HA_TRY(source->Expect(bytes, where));
  }
  slice_ = 0;
  begun_ = true;
  return {};
}

void Lane::CutSlice(const std::vector<Extent>& all, Form form, SlicePieces& slice) const {
  const uint64_t from = slice_ * slice_length_;
  shared_.map.Cut(all, from, from + slice_length_, form, slice.extents);
  slice.pieces.clear();
  slice.readable.clear();
  for (const Extent& extent : slice.extents) {
    const uint64_t bytes = extent.count * shared_.map.element_bytes(extent.tensor, form);
    slice.pieces.emplace_back(extent.data, bytes);
    slice.readable.emplace_back(extent.data, bytes);
  }
}

Result<bool> Lane::Receive() {
  arrivals_.clear();
  for (ReceiveLink* source : current().sources) {
    HA_ASSIGN(const Arrival* arrival, source->Arrived());
    if (arrival == nullptr) return false;
    arrivals_.push_back(arrival);
  }
  return true;
}

bool Lane::HasRoom() const {
  return std::ranges::all_of(current().targets, [](SendLink* link) { return link->HasRoom(); });
}

// Combines this slice's operands, or takes the message that has arrived.
Status Lane::Make() {
  const schedule::Step& step = current().step;
  if (step.src != Buffer::kNone) CutSlice(own_, own_form_, own_slice_);
  if (Stores(step)) CutSlice(stored_, result_form_, stored_slice_);
  if (step.src == Buffer::kNone) {
    const Arrival& arrival = *arrivals_.front();
    if (!arrival.placed) CopyPieces(arrival.pieces, stored_slice_.pieces);
    return {};
  }
  if (step.op == Op::kSend && passes_on_) return {};
  if (step.op == Op::kCopy && !shared_.map.reduces()) {
    CopyPieces(own_slice_.readable, stored_slice_.pieces);
    return {};
  }
  if (Stores(step)) {
    const Target target{stored_slice_.pieces};
    return MakeIn({&target, 1}, own_slice_.extents);
  }
  const uint64_t bytes = shared_.map.BytesOf(own_slice_.extents, result_form_);
  if (held_) {
    hold_.resize(bytes);
    const std::span<std::byte> whole(hold_);
    const Target target{{&whole, 1}};
    return MakeIn({&target, 1}, own_slice_.extents);
  }
  std::array<std::span<std::byte>, schedule::kMaxPeers> slots;
  std::array<Target, schedule::kMaxPeers> targets;
  size_t count = 0;
  for (SendLink* link : current().targets) {
    HA_ASSIGN(std::byte* const slot, link->Slot());
    slots[count] = {slot, bytes};
    targets[count] = {{&slots[count], 1}};
    if (++count == schedule::kMaxPeers) break;
  }
  return MakeIn({targets.data(), count}, own_slice_.extents);
}

Status Lane::MakeIn(std::span<const Target> targets, const std::vector<Extent>& shape) {
  const schedule::Step& step = current().step;
  const Operand own{own_slice_.readable, own_form_, (step.flags & schedule::kPrescaleOwn) != 0};
  operands_.clear();
  for (size_t k = 0; k < arrivals_.size(); ++k) {
    if (k == current().own_position) operands_.push_back(own);
    operands_.push_back(
        {arrivals_[k]->pieces, received_form_, (step.flags & schedule::kPrescaleReceived) != 0});
  }
  if (current().own_position >= arrivals_.size()) operands_.push_back(own);
  shared_.combiner.Combine(shape, operands_, targets, result_form_ == Form::kElements);
  return {};
}

Status Lane::Post() {
  const schedule::Step& step = current().step;
  if (current().targets.empty()) return {};
  if (passes_on_) {
    const SlicePieces& from = Stores(step) ? stored_slice_ : own_slice_;
    for (SendLink* link : current().targets) HA_TRY(link->Post(from.readable));
    return {};
  }
  // The first targets' slots hold the result; the others get a copy.
  const uint64_t bytes = shared_.map.BytesOf(own_slice_.extents, result_form_);
  const std::byte* made = held_ ? hold_.data() : nullptr;
  for (size_t k = 0; k < current().targets.size(); ++k) {
    SendLink* link = current().targets[k];
    HA_ASSIGN(std::byte* const slot, link->Slot());
    if ((held_ || k >= schedule::kMaxPeers) && bytes > 0) std::memcpy(slot, made, bytes);
    if (made == nullptr) made = slot;
    const std::span<const std::byte> piece(slot, bytes);
    HA_TRY(link->Post({&piece, 1}));
  }
  return {};
}

void Lane::EndSlice() {
  made_ = held_ = false;
  if (++slice_ < slices_) return;
  const schedule::Step& step = current().step;
  if (step.dst == Buffer::kOutput && shared_.keeps_apart) {
    std::vector<uint8_t>& finished = shared_.finished[window_ % shared_.places];
    for (uint32_t k = 0; k < step.count; ++k) {
      finished[(step.dst_chunk + k) % shared_.chunks] = result_form_ == Form::kElements ? 1 : 0;
    }
  }
  begun_ = false;
  ++k_;
}

}  // namespace horoacc
