# cokv_library(NAME HEADERS ... SOURCES ... LINK ...): a library room. Public headers live under include/cokv/NAME.
function(cokv_library name)
  cmake_parse_arguments(ARG "" "" "HEADERS;SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(cokv_${name} STATIC)
  add_library(cokv::${name} ALIAS cokv_${name})
  set_target_properties(cokv_${name} PROPERTIES EXPORT_NAME ${name} VERIFY_INTERFACE_HEADER_SETS ON)
  list(TRANSFORM ARG_HEADERS PREPEND include/cokv/${name}/)
  list(TRANSFORM ARG_SOURCES PREPEND src/)
  target_sources(cokv_${name} PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${ARG_HEADERS} PRIVATE ${ARG_SOURCES})
  target_include_directories(cokv_${name} PRIVATE src)
  target_compile_features(cokv_${name} PUBLIC cxx_std_20)
  target_link_libraries(cokv_${name} PUBLIC ${ARG_LINK} PRIVATE $<BUILD_INTERFACE:cokv_flags> ${ARG_PRIVATE_LINK})
  set_property(GLOBAL APPEND PROPERTY COKV_LIBRARIES cokv_${name})
endfunction()

# cokv_test(NAME SOURCES ... LINK ... LABELS ...): one doctest executable a room. Those of units are compiled unoptimised,
# in a quarter of the time, and what is inline is taken from the libraries, which are not; those of seeds, which run far longer, are compiled as
# the libraries are.
function(cokv_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
    if(COKV_SANITIZE)  # a suite takes half of it on a quiet machine
      set(ARG_TIMEOUT 1800)
    endif()
  endif()
  add_executable(cokv_test_${name} ${ARG_SOURCES})
  target_link_libraries(cokv_test_${name} PRIVATE cokv_flags cokv_test_support ${ARG_LINK})
  if("unit" IN_LIST ARG_LABELS)
    if(NOT COKV_UNIT_TESTS)
      set_target_properties(cokv_test_${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
    cokv_test_unoptimised(cokv_test_${name})
    cokv_libraries_first(cokv_test_${name} ${ARG_LINK})
  else()
    target_precompile_headers(cokv_test_${name} REUSE_FROM cokv_test_support)
  endif()
  target_compile_definitions(cokv_test_${name} PRIVATE COKV_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND cokv_test_${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if("sim" IN_LIST ARG_LABELS)  # the same with more seeds: ctest -L soak
    if(COKV_SANITIZE MATCHES "address")  # fewer of so many short runs, in a third of the time each
      set_tests_properties(${name} PROPERTIES
        ENVIRONMENT "COKV_SEEDS=100;ASAN_OPTIONS=malloc_context_size=4:detect_stack_use_after_return=0")
    endif()
    add_test(NAME ${name}_soak COMMAND cokv_test_${name})
    set_tests_properties(${name}_soak PROPERTIES LABELS soak TIMEOUT 7200 ENVIRONMENT COKV_SEEDS=10000)
  endif()
endfunction()

# Before the target's own objects, whole: of functions that are in several the linker takes the first. Not where
# stand-ins have to come before what they stand for.
function(cokv_libraries_first target)
  if(target MATCHES "_fake_")
    return()
  endif()
  set(rooms)
  foreach(room apps engine kvstream runtime)
    if(rooms OR "cokv_${room}" IN_LIST ARGN OR "cokv::${room}" IN_LIST ARGN)
      list(APPEND rooms $<TARGET_FILE:cokv_${room}>)
    endif()
  endforeach()
  if(rooms AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_link_options(${target} PRIVATE LINKER:--whole-archive ${rooms} LINKER:--no-whole-archive)
  endif()
endfunction()

# Sources of an unoptimised test that would take most of its time.
function(cokv_test_optimised)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O2 SKIP_PRECOMPILE_HEADERS ON)
endfunction()

function(cokv_test_unoptimised target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  target_precompile_headers(${target} REUSE_FROM cokv_test_unoptimised)
endfunction()

# cokv_cuda_sources(TARGET SOURCES...): sources of a library that see CUDA's headers, by themselves, so that all its others are compiled
# the same with a toolkit and without: a build tree that is configured again for CUDA compiles these alone.
function(cokv_cuda_sources target)
  target_sources(${target} PRIVATE ${ARGN})
  set(headers ${CUDAToolkit_INCLUDE_DIRS})
  if(COKV_HAVE_NCCL)
    list(APPEND headers ${COKV_NCCL_INCLUDE_DIR})
  endif()
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON INCLUDE_DIRECTORIES "${headers}")
endfunction()
