// A backend with the ways of ProcessGroupNCCL since torch 2.8, for tensors of the CPU.
//
// Threads stand for the device's streams: each does what is enqueued later, one thing after the other, and nothing before
// all has ended that the program had waited for when it was enqueued.  A group has a stream, and so has each pair of its
// ranks that sends a message outside of a batch.  A send ends once its recv has taken it; tags are ignored.  So a synchronous
// call hands back no Work, wait() of an asynchronous one returns at once (a barrier's does not), a future is done when it is
// made, calls between startCoalescing and endCoalescing are one Work, whose messages do not wait for each other, and a call
// that takes longer than the group's time limit ends the process, as the watchdog does.  Bytes travel through the group's
// store.

#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

using namespace c10d;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using Clock = std::chrono::steady_clock;

// --- the streams ------------------------------------------------------------------------

using Marks = std::set<uint64_t>;

struct Task {
  uint64_t mark;
  Marks after;  // what the program had waited for
  std::function<void()> what;
};

struct Device {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::deque<Task>> streams;
  std::vector<std::pair<std::string, std::function<void()>>> graph;  // what was captured
  uint64_t enqueued = 0;
  Marks open, awaited;  // what has not ended; what the program has waited for of that
  bool held = false, capturing = false;

  void execute(std::deque<Task>& queue) {
    for (;;) {
      Task next;
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return !queue.empty() && !held && is_past(queue.front().after); });
        next = std::move(queue.front());
        queue.pop_front();
      }
      next.what();
      next.what = nullptr;  // lets go of its tensors, which takes Python, before anybody learns that it's done
      std::lock_guard<std::mutex> lock(mutex);
      open.erase(next.mark);
      awaited.erase(next.mark);
      changed.notify_all();
    }
  }

  bool is_past(const Marks& marks) {
    for (auto mark : marks)
      if (open.count(mark)) return false;
    return true;
  }

  uint64_t enqueue(const std::string& stream, std::function<void()> what) {
    std::lock_guard<std::mutex> lock(mutex);
    if (capturing) {
      graph.push_back({stream, what});
      return enqueued;
    }
    auto is_new = !streams.count(stream);
    auto& queue = streams[stream];
    open.insert(++enqueued);
    queue.push_back({enqueued, awaited, what});
    if (is_new) std::thread([this, &queue] { execute(queue); }).detach();
    changed.notify_all();
    return enqueued;
  }

  void wait_in_stream(uint64_t mark) {
    std::lock_guard<std::mutex> lock(mutex);
    if (open.count(mark)) awaited.insert(mark);
  }

  void wait(uint64_t mark) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return !open.count(mark); });
  }

  void synchronize() {
    std::unique_lock<std::mutex> lock(mutex);
    TORCH_CHECK(!capturing, "operation not permitted when stream is capturing");
    changed.wait(lock, [this] { return open.empty(); });
  }

  bool reached(uint64_t mark) {
    std::lock_guard<std::mutex> lock(mutex);
    TORCH_CHECK(!capturing, "operation not permitted when stream is capturing");
    return open.empty() || *open.begin() > mark;
  }

  bool ended(uint64_t mark) {
    std::lock_guard<std::mutex> lock(mutex);
    TORCH_CHECK(!capturing, "operation not permitted when stream is capturing");
    return !open.count(mark);
  }

  void hold(bool now) {
    std::lock_guard<std::mutex> lock(mutex);
    held = now;
    changed.notify_all();
  }

  void capture(bool now) {
    std::lock_guard<std::mutex> lock(mutex);
    if (now) graph.clear();
    capturing = now;
  }

  void replay() {
    auto calls = graph;
    for (auto& [stream, call] : calls) enqueue(stream, call);
  }
};

Device& device() {
  static auto* one = new Device;  // never destroyed: its threads go on until the process ends
  return *one;
}

struct Event {  // recorded when it is made
  uint64_t mark = device().enqueued;
  bool query() const { return device().reached(mark); }
};

// --- a call -----------------------------------------------------------------------------

struct LaterWork : Work {
  LaterWork(OpType type, Tensors outputs) : Work(-1, type), outputs(std::move(outputs)) {}
  Tensors outputs;
  uint64_t mark = 0;

  bool isCompleted() override { return device().ended(mark); }
  bool isSuccess() const override { return true; }
  void synchronize() override { device().wait_in_stream(mark); }
  void blockCurrentStream() override { device().wait_in_stream(mark); }
  bool wait(std::chrono::milliseconds) override {
    if (opType_ == OpType::BARRIER) device().wait(mark);
    device().wait_in_stream(mark);
    return true;
  }
  float getDuration() const override { return 0.25; }
  std::vector<at::Tensor> result() override { return outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(outputs));
    return future;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    future->markCompleted(c10::IValue(static_cast<int64_t>(WorkResult::SUCCESS)));
    return future;
  }
};

std::vector<uint8_t> bytes(const at::Tensor& t) {
  auto dense = t.detach().contiguous();
  auto* first = static_cast<const uint8_t*>(dense.data_ptr());
  return {first, first + dense.nbytes()};
}

at::Tensor tensor(std::vector<uint8_t>& data, const at::Tensor& like) {  // of the shape of `like` if it has as many
  auto flat = at::from_blob(data.data(), {static_cast<int64_t>(data.size() / like.element_size())}, like.options());
  return flat.numel() == like.numel() ? flat.view_as(like).clone() : flat.clone();
}

// A call in steps: in a batch, all take the first one before any takes the next.
struct Steps {
  std::function<void()> begin, end, settle = [] {};
};

const std::string ALL;  // the communicator of a group

std::atomic<int> connecting{0};  // first calls that wait for their peers

struct LaterBackend : Backend {
  c10::intrusive_ptr<Store> store;
  std::chrono::duration<float> limit;
  std::string name;  // of its streams
  std::mutex counting;
  std::map<std::string, int> executed;  // calls of each lane until now
  std::set<std::string> connected;  // communicators
  bool coalescing = false;
  Tensors coalesced;
  std::vector<Steps> batch;

  LaterBackend(c10::intrusive_ptr<Store> store, int rank, int size, std::chrono::duration<float> limit)
      : Backend(rank, size), store(std::move(store)), limit(limit) {
    static int groups = 0;
    name = std::to_string(groups++);
  }

  const std::string getBackendName() const override { return "nccl"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override {
    coalescing = true;
    coalesced.clear();
    batch.clear();
  }
  c10::intrusive_ptr<Work> endCoalescing() override {
    coalescing = false;
    auto work = c10::make_intrusive<LaterWork>(OpType::COALESCED, coalesced);
    if (batch.empty()) return work;
    connect(ALL, everybody());
    auto calls = std::make_shared<std::vector<Steps>>(std::move(batch));
    work->mark = device().enqueue(name, [calls] {
      for (auto& call : *calls) call.begin();   // sends
      for (auto& call : *calls) call.end();     // recvs
      for (auto& call : *calls) call.settle();  // sends that were taken
      calls->clear();
    });
    return work;
  }

  // In the stream: what a rank has put under a key, once it is there.
  std::vector<uint8_t> take(const std::string& key, const char* name) {
    auto began = Clock::now();
    while (!store->check({key})) {
      if (Clock::now() - began > limit) {
        std::cerr << "[rank " << getRank() << "] Watchdog caught collective operation timeout: WorkNCCL(OpType=" << name
                  << ") ran for too long: to avoid data inconsistency, we are taking the entire process down." << std::endl;
        std::abort();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return store->get(key);
  }

  c10::intrusive_ptr<Work> enqueue(
      const std::string& communicator, std::vector<int> members, OpType type, bool async, Tensors outputs, Steps what) {
    if (coalescing) {
      coalesced.insert(coalesced.end(), outputs.begin(), outputs.end());
      batch.push_back(what);
      return {};
    }
    connect(communicator, members);
    auto work = c10::make_intrusive<LaterWork>(type, outputs);
    work->mark = device().enqueue(name + communicator, [what] {
      what.begin();
      what.end();
      what.settle();
    });
    if (async) return work;
    device().wait_in_stream(work->mark);
    return {};
  }

  // The first call of a communicator waits, on the host, until all its ranks make one: only then NCCL's are connected.
  void connect(const std::string& communicator, const std::vector<int>& members) {
    if (connected.count(communicator)) return;
    connecting++;
    auto key = "connect/" + communicator + "/";
    store->set(key + std::to_string(getRank()), std::vector<uint8_t>{0});
    for (int r : members)
      while (!store->check({key + std::to_string(r)})) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    connecting--;
    connected.insert(communicator);
  }

  std::vector<int> everybody() {
    std::vector<int> ranks;
    for (int r = 0; r < getSize(); r++) ranks.push_back(r);
    return ranks;
  }

  std::string count(const std::string& lane) {
    std::lock_guard<std::mutex> lock(counting);
    return std::to_string(executed[lane]++);
  }

  // Every rank brings tensors; finish gets what all have brought, by rank and place.
  using Brought = std::function<at::Tensor(int rank, int place, const at::Tensor& like)>;
  c10::intrusive_ptr<Work> together(
      OpType type, bool async, Tensors inputs, Tensors outputs, std::function<void(Brought)> finish) {
    auto make = [=, this] {
      auto call = "call/" + count("all") + "/";
      for (size_t k = 0; k < inputs.size(); k++)
        store->set(call + std::to_string(getRank()) + "/" + std::to_string(k), bytes(inputs[k]));
      if (inputs.empty()) store->set(call + std::to_string(getRank()) + "/0", std::vector<uint8_t>{0});
      finish([=, this](int rank, int place, const at::Tensor& like) {
        auto data = take(call + std::to_string(rank) + "/" + std::to_string(place), opTypeToString(type).c_str());
        return tensor(data, like);
      });
    };
    return enqueue(ALL, everybody(), type, async, outputs, {[] {}, make});
  }

  c10::intrusive_ptr<Work> allreduce(Tensors& x, const AllreduceOptions& o) override {
    return together(OpType::ALLREDUCE, o.asyncOp, x, x, [=, this](Brought of) mutable { sum(x, of); });
  }
  c10::intrusive_ptr<Work> allreduce_coalesced(Tensors& x, const AllreduceCoalescedOptions& o) override {
    return together(OpType::ALLREDUCE_COALESCED, o.asyncOp, x, x, [=, this](Brought of) mutable { sum(x, of); });
  }
  void sum(Tensors& x, const Brought& of) {
    for (size_t k = 0; k < x.size(); k++) {
      auto total = at::zeros_like(x[k]);
      for (int r = 0; r < getSize(); r++) total.add_(of(r, k, x[k]));
      x[k].copy_(total);
    }
  }
  c10::intrusive_ptr<Work> broadcast(Tensors& x, const BroadcastOptions& o) override {
    return together(OpType::BROADCAST, o.asyncOp, x, x, [=, this](Brought of) mutable { x[0].copy_(of(o.rootRank, 0, x[0])); });
  }
  c10::intrusive_ptr<Work> allgather(Lists& out, Tensors& in, const AllgatherOptions& o) override {
    return together(OpType::ALLGATHER, o.asyncOp, in, out[0], [=, this](Brought of) mutable {
      for (int r = 0; r < getSize(); r++) out[0][r].copy_(of(r, 0, out[0][r]));
    });
  }
  c10::intrusive_ptr<Work> _allgather_base(at::Tensor& out, at::Tensor& in, const AllgatherOptions& o) override {
    return together(OpType::_ALLGATHER_BASE, o.asyncOp, {in}, {out}, [=, this](Brought of) mutable {
      auto parts = out.view(-1).chunk(getSize());
      for (int r = 0; r < getSize(); r++) parts[r].copy_(of(r, 0, parts[r]));
    });
  }
  c10::intrusive_ptr<Work> reduce_scatter(Tensors& out, Lists& in, const ReduceScatterOptions& o) override {
    return together(OpType::REDUCE_SCATTER, o.asyncOp, in[0], out, [=, this](Brought of) mutable {
      out[0].zero_();
      for (int r = 0; r < getSize(); r++) out[0].add_(of(r, getRank(), out[0]));
    });
  }
  c10::intrusive_ptr<Work> _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const ReduceScatterOptions& o) override {
    return together(OpType::_REDUCE_SCATTER_BASE, o.asyncOp, {in}, {out}, [=, this](Brought of) mutable {
      out.zero_();
      for (int r = 0; r < getSize(); r++) out.view(-1).add_(of(r, 0, in).view(-1).chunk(getSize())[getRank()]);
    });
  }
  c10::intrusive_ptr<Work> gather(Lists& out, Tensors& in, const GatherOptions& o) override {
    return together(OpType::GATHER, o.asyncOp, in, out.empty() ? Tensors{} : out[0], [=, this](Brought of) mutable {
      for (int r = 0; getRank() == o.rootRank && r < getSize(); r++) out[0][r].copy_(of(r, 0, out[0][r]));
    });
  }
  c10::intrusive_ptr<Work> scatter(Tensors& out, Lists& in, const ScatterOptions& o) override {
    return together(OpType::SCATTER, o.asyncOp, in.empty() ? Tensors{} : in[0], out, [=, this](Brought of) mutable {
      out[0].copy_(of(o.rootRank, getRank(), out[0]));
    });
  }
  c10::intrusive_ptr<Work> barrier(const BarrierOptions&) override {
    auto byte = at::zeros({1}, at::kByte);
    return together(OpType::BARRIER, true, {byte}, {}, [=, this](Brought of) {
      for (int r = 0; r < getSize(); r++) of(r, 0, byte);
    });
  }
  // A batch's messages travel in the group's communicator, others in one of the two ranks alone: neither sees the other's.
  c10::intrusive_ptr<Work> send(Tensors& x, int target, int) override {
    auto communicator = coalescing ? ALL : between(target);
    auto key = std::make_shared<std::string>();
    auto begin = [=, this] {
      *key = message(communicator, getRank(), target);
      store->set(*key, bytes(x[0]));
    };
    auto settle = [=, this] { take(*key + "/taken", "SEND"); };
    return enqueue(communicator, {getRank(), target}, OpType::SEND, true, x, {begin, [] {}, settle});
  }
  c10::intrusive_ptr<Work> recv(Tensors& x, int source, int) override {
    auto communicator = coalescing ? ALL : between(source);
    auto end = [=, this] {
      auto key = message(communicator, source, getRank());
      auto data = take(key, "RECV");
      x[0].copy_(tensor(data, x[0]));
      store->set(key + "/taken", std::vector<uint8_t>{0});
    };
    return enqueue(communicator, {getRank(), source}, OpType::RECV, true, x, {[] {}, end});
  }
  std::string between(int peer) {
    return " " + std::to_string(std::min(peer, getRank())) + ":" + std::to_string(std::max(peer, getRank()));
  }
  std::string message(const std::string& communicator, int source, int target) {
    auto lane = "message" + communicator + "/" + std::to_string(source) + "-" + std::to_string(target) + "/";
    return lane + count(lane);
  }
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("backend", [](const c10::intrusive_ptr<Store>& store, int rank, int size, const std::chrono::duration<float>& limit) {
    return c10::intrusive_ptr<Backend>(c10::make_intrusive<LaterBackend>(store, rank, size, limit));
  });
  auto unlocked = py::call_guard<py::gil_scoped_release>();
  m.def("synchronize", [] { device().synchronize(); }, unlocked);
  m.def("hold", [](bool now) { device().hold(now); }, unlocked);
  m.def("capture", [](bool now) { device().capture(now); }, unlocked);
  m.def("capturing", [] { return device().capturing; });
  m.def("connecting", [] { return connecting.load(); });
  m.def("replay", [] { device().replay(); }, unlocked);
  auto in_thread = [](const c10::intrusive_ptr<ProcessGroup>& group, Tensors x) {
    std::thread([&] { group->allreduce(x)->wait(); }).join();
  };
  m.def("all_reduce_in_thread", in_thread, unlocked);  // as autograd's thread for a GPU does, in which is no Python
  py::class_<Event>(m, "Event").def(py::init<>()).def("query", &Event::query);
}
