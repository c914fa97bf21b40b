# GCC before 13 destroys temporaries twice in expressions that hold co_await: silent corruption, so it is refused.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  message(FATAL_ERROR "cokv needs Clang >= 16 or GCC >= 13 (GCC 12 miscompiles co_await expressions). "
                      "On Debian 12: apt-get install clang-19, then cmake --preset release")
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
  message(FATAL_ERROR "cokv needs Clang >= 16 or GCC >= 13")
endif()

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)


find_program(COKV_CCACHE ccache)
if(COKV_CCACHE AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${COKV_CCACHE})
endif()

add_library(cokv_flags INTERFACE)
target_compile_features(cokv_flags INTERFACE cxx_std_20)
target_compile_options(cokv_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -Wno-unused-parameter -fPIC>
  "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>")
if(COKV_SANITIZE)
  target_compile_options(cokv_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${COKV_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(cokv_flags INTERFACE -fsanitize=${COKV_SANITIZE})
  # What AddressSanitizer sees anyway, in the end, and what takes a quarter of the time to compile.
  if(COKV_SANITIZE MATCHES "address" AND COKV_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(cokv_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,vptr,object-size>)
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  find_program(COKV_LLD NAMES ld.lld-19 ld.lld)
  if(COKV_LLD)
    target_link_options(cokv_flags INTERFACE --ld-path=${COKV_LLD})
  endif()
endif()
