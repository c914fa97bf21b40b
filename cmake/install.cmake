include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(libraries GLOBAL PROPERTY COKV_LIBRARIES)
install(TARGETS ${libraries} EXPORT cokv FILE_SET HEADERS)
install(EXPORT cokv NAMESPACE cokv:: FILE cokv-targets.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/cokv)
configure_package_config_file(cmake/cokv-config.cmake.in cokv-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/cokv)
write_basic_package_version_file(cokv-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cokv-config.cmake ${PROJECT_BINARY_DIR}/cokv-config-version.cmake
  cmake/FindoneDNN.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/cokv)
if(TARGET cokv)
  install(TARGETS cokv)
endif()
