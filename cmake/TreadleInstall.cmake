# What `cmake --install` copies: two archives made of all rooms, the headers, the command, and the files for
# find_package(Treadle). Nothing in them names a folder of this machine, so the prefix may be moved.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(treadleConfigDir "${CMAKE_INSTALL_LIBDIR}/cmake/Treadle")

# Makes the archive TARGET out of the objects of every room whose name matches, exported as treadle::EXPORT_NAME.
function(treadle_merged_archive target exportName pattern)
  add_library(${target} STATIC)
  get_property(rooms GLOBAL PROPERTY TREADLE_ROOMS)
  set(objects)
  foreach(room IN LISTS rooms)
    treadle_room_target(roomTarget "${room}")
    get_target_property(type ${roomTarget} TYPE)
    if(room MATCHES "${pattern}" AND type STREQUAL "STATIC_LIBRARY")
      list(APPEND objects "$<TARGET_OBJECTS:${roomTarget}>")
    endif()
  endforeach()
  target_sources(${target} PRIVATE ${objects})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${exportName} LINKER_LANGUAGE CXX)
  target_include_directories(${target} INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_compile_features(${target} INTERFACE cxx_std_20)
endfunction()

treadle_merged_archive(treadle_core core "^core/")
target_link_libraries(treadle_core PUBLIC OpenSSL::SSL OpenSSL::Crypto Threads::Threads)
install(TARGETS treadle_core EXPORT TreadleCoreTargets ARCHIVE)
install(EXPORT TreadleCoreTargets NAMESPACE treadle:: DESTINATION "${treadleConfigDir}")

if(TREADLE_WITH_TORCH)
  treadle_merged_archive(treadle_full treadle "^(tensor|train)/")
  set_target_properties(treadle_full PROPERTIES OUTPUT_NAME treadle)
  target_link_libraries(treadle_full PUBLIC treadle_core treadle::torch)
  install(TARGETS treadle_full EXPORT TreadleTargets ARCHIVE)
  install(EXPORT TreadleTargets NAMESPACE treadle:: DESTINATION "${treadleConfigDir}")
endif()

if(TARGET treadle_program)
  install(TARGETS treadle_program RUNTIME)
endif()
set(leaveOut PATTERN "cli" EXCLUDE)
if(NOT TREADLE_WITH_TORCH)
  list(APPEND leaveOut PATTERN "tensor" EXCLUDE PATTERN "train" EXCLUDE)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/treadle" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" ${leaveOut})

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/TreadleConfig.cmake.in" "${PROJECT_BINARY_DIR}/TreadleConfig.cmake"
                              INSTALL_DESTINATION "${treadleConfigDir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/TreadleConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/TreadleConfig.cmake" "${PROJECT_BINARY_DIR}/TreadleConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindTreadleTorch.cmake" DESTINATION "${treadleConfigDir}")
