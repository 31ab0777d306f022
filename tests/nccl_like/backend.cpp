// A backend with the ways of ProcessGroupNCCL since torch 2.8, for tensors of the CPU.
//
// A thread stands for the device: it does what is enqueued later, one thing after the other ("the stream").  So a
// synchronous call hands back no Work, wait() of an asynchronous one returns at once (a barrier's does not), a future is
// done when it is made, calls between startCoalescing and endCoalescing are one Work, and a call that takes longer than
// the group's time limit ends the process, as the watchdog does.  Bytes travel through the group's store.

#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>

using namespace c10d;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using Clock = std::chrono::steady_clock;

// --- the stream -------------------------------------------------------------------------

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::vector<std::function<void()>> graph;  // what was captured
  uint64_t enqueued = 0;
  std::atomic<uint64_t> executed{0};
  bool held = false, capturing = false;

  Stream() {
    std::thread([this] { execute(); }).detach();
  }

  void execute() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [this] { return !queue.empty() && !held; });
        next = queue.front();
        queue.pop_front();
      }
      next();
      next = nullptr;  // lets go of its tensors, which takes Python, before anybody learns that it's done
      std::lock_guard<std::mutex> lock(mutex);
      executed++;
      changed.notify_all();
    }
  }

  uint64_t enqueue(std::function<void()> what) {
    std::lock_guard<std::mutex> lock(mutex);
    if (capturing) {
      graph.push_back(what);
      return enqueued;
    }
    queue.push_back(what);
    changed.notify_all();
    return ++enqueued;
  }

  void synchronize() {
    std::unique_lock<std::mutex> lock(mutex);
    TORCH_CHECK(!capturing, "operation not permitted when stream is capturing");
    changed.wait(lock, [this] { return executed == enqueued; });
  }

  bool reached(uint64_t mark) {
    TORCH_CHECK(!capturing, "operation not permitted when stream is capturing");
    return executed >= mark;
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
    for (auto& call : calls) enqueue(call);
  }
};

Stream& stream() {
  static auto* one = new Stream;  // never destroyed: its thread goes on until the process ends
  return *one;
}

struct Event {  // recorded when it is made
  uint64_t mark = stream().enqueued;
  bool query() const { return stream().reached(mark); }
};

// --- a call -----------------------------------------------------------------------------

struct LaterWork : Work {
  LaterWork(OpType type, Tensors outputs) : Work(-1, type), outputs(std::move(outputs)) {}
  Tensors outputs;
  uint64_t mark = 0;

  bool isCompleted() override { return stream().reached(mark); }
  bool isSuccess() const override { return true; }
  void synchronize() override {}
  void blockCurrentStream() override {}
  bool wait(std::chrono::milliseconds) override {
    if (opType_ == OpType::BARRIER) stream().synchronize();
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

std::atomic<int> connecting{0};  // first calls that wait for their peers

struct LaterBackend : Backend {
  c10::intrusive_ptr<Store> store;
  std::chrono::duration<float> limit;
  std::map<std::string, int> executed;  // calls of each lane until now
  bool coalescing = false, connected = false;
  uint64_t last = 0;
  Tensors coalesced;

  LaterBackend(c10::intrusive_ptr<Store> store, int rank, int size, std::chrono::duration<float> limit)
      : Backend(rank, size), store(std::move(store)), limit(limit) {}

  const std::string getBackendName() const override { return "nccl"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override {
    coalescing = true;
    coalesced.clear();
  }
  c10::intrusive_ptr<Work> endCoalescing() override {
    coalescing = false;
    auto work = c10::make_intrusive<LaterWork>(OpType::COALESCED, coalesced);
    work->mark = last;
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

  c10::intrusive_ptr<Work> enqueue(OpType type, bool async, Tensors outputs, std::function<void()> what) {
    auto work = c10::make_intrusive<LaterWork>(type, outputs);
    last = work->mark = stream().enqueue(what);
    if (coalescing) {
      coalesced.insert(coalesced.end(), outputs.begin(), outputs.end());
      return {};
    }
    return async ? c10::intrusive_ptr<Work>(work) : c10::intrusive_ptr<Work>();
  }

  // A group's first call waits, on the host, until all ranks make it: only then NCCL's ranks are connected.
  void connect() {
    connecting++;
    store->set("connect/" + std::to_string(getRank()), std::vector<uint8_t>{0});
    for (int r = 0; r < getSize(); r++)
      while (!store->check({"connect/" + std::to_string(r)})) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    connecting--;
    connected = true;
  }

  // Every rank brings tensors; finish gets what all have brought, by rank and place.
  using Brought = std::function<at::Tensor(int rank, int place, const at::Tensor& like)>;
  c10::intrusive_ptr<Work> together(
      OpType type, bool async, Tensors inputs, Tensors outputs, std::function<void(Brought)> finish) {
    if (!connected) connect();
    return enqueue(type, async, outputs, [=, this] {
      auto call = "call/" + std::to_string(executed["all"]++) + "/";
      for (size_t k = 0; k < inputs.size(); k++)
        store->set(call + std::to_string(getRank()) + "/" + std::to_string(k), bytes(inputs[k]));
      if (inputs.empty()) store->set(call + std::to_string(getRank()) + "/0", std::vector<uint8_t>{0});
      finish([=, this](int rank, int place, const at::Tensor& like) {
        auto data = take(call + std::to_string(rank) + "/" + std::to_string(place), opTypeToString(type).c_str());
        return tensor(data, like);
      });
    });
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
  c10::intrusive_ptr<Work> send(Tensors& x, int target, int tag) override {
    return enqueue(OpType::SEND, true, x, [=, this] { store->set(message(getRank(), target, tag), bytes(x[0])); });
  }
  c10::intrusive_ptr<Work> recv(Tensors& x, int source, int tag) override {
    return enqueue(OpType::RECV, true, x, [=, this] {
      auto data = take(message(source, getRank(), tag), "RECV");
      x[0].copy_(tensor(data, x[0]));
    });
  }
  std::string message(int source, int target, int tag) {
    auto lane = std::to_string(source) + "-" + std::to_string(target) + "/" + std::to_string(tag) + "/";
    return lane + std::to_string(executed[lane]++);
  }
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("backend", [](const c10::intrusive_ptr<Store>& store, int rank, int size, const std::chrono::duration<float>& limit) {
    return c10::intrusive_ptr<Backend>(c10::make_intrusive<LaterBackend>(store, rank, size, limit));
  });
  auto unlocked = py::call_guard<py::gil_scoped_release>();
  m.def("synchronize", [] { stream().synchronize(); }, unlocked);
  m.def("hold", [](bool now) { stream().hold(now); }, unlocked);
  m.def("capture", [](bool now) { stream().capture(now); }, unlocked);
  m.def("capturing", [] { return stream().capturing; });
  m.def("connecting", [] { return connecting.load(); });
  m.def("replay", [] { stream().replay(); }, unlocked);
  auto in_thread = [](const c10::intrusive_ptr<ProcessGroup>& group, Tensors x) {
    std::thread([&] { group->allreduce(x)->wait(); }).join();
  };
  m.def("all_reduce_in_thread", in_thread, unlocked);  // as autograd's thread for a GPU does, in which is no Python
  py::class_<Event>(m, "Event").def(py::init<>()).def("query", &Event::query);
}
