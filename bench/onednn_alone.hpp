// A product as oneDNN makes it by itself: layouts, kernel and its own threads as it chooses.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <dnnl.hpp>
#include <thread>
#include <unordered_map>

#include "cokv/kvstream/dtype.hpp"

namespace cokv::bench {

// y[m][n] = x[m][k] * w[k][n], x and w of the type, y f32. Made and run on one thread; oneDNN takes `threads`.
class onednn_product {
 public:
  onednn_product(dtype type, std::size_t m, std::size_t n, std::size_t k)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using md = dnnl::memory::desc;
    using tag = dnnl::memory::format_tag;
    const auto dims = [](std::size_t a, std::size_t b) {
      return dnnl::memory::dims{static_cast<dnnl::memory::dim>(a), static_cast<dnnl::memory::dim>(b)};
    };
    const auto elements = type == dtype::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
    const md x(dims(m, k), elements, tag::ab), w(dims(k, n), elements, tag::any),
        y(dims(m, n), dnnl::memory::data_type::f32, tag::ab);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc desc(engine_, x, w, y);
#else
    const dnnl::matmul::primitive_desc desc({x, w, y}, engine_);
#endif
    primitive_ = dnnl::matmul(desc);
    arguments_ = {{DNNL_ARG_SRC, filled(desc.src_desc())},
                  {DNNL_ARG_WEIGHTS, filled(desc.weights_desc())},
                  {DNNL_ARG_DST, filled(desc.dst_desc())}};
  }
  void operator()() {
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }
  // Of the OpenMP runtime that oneDNN is built with; a oneDNN without one takes what it takes.
  static void use_threads(int n) {
    if (auto set = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(n);
  }
  // OpenMP's spin for a while after each product, and would take a core from whoever is measured next.
  static void let_threads_sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

 private:
  dnnl::memory filled(const dnnl::memory::desc& d) {
    dnnl::memory out(d, engine_);
    std::memset(out.get_data_handle(), 0, d.get_size());  // zeros take what other numbers take
    return out;
  }
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

}  // namespace cokv::bench
