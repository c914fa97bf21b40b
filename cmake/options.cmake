option(COKV_BUILD_APPS "Build the cokv command" ON)
option(COKV_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(COKV_BUILD_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(COKV_TRACING "Spans of streams, transfers and requests; OFF: they are no code at all" ON)
set(COKV_CUDA "AUTO" CACHE STRING "CUDA device: AUTO (when a toolkit is found), ON, OFF")
set_property(CACHE COKV_CUDA PROPERTY STRINGS AUTO ON OFF)
set(COKV_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them (address,undefined or thread)")

# ThreadSanitizer reports oneTBB's own internals; under it, CPU streams run on plain threads.
if(COKV_SANITIZE MATCHES "thread")
  set(COKV_PLAIN_THREADS ON)
else()
  set(COKV_PLAIN_THREADS OFF)
endif()
