# How tests become programs: every folder tests/ROOM with a *_test.cc is one GoogleTest program, tests/core/wire ->
# core_wire_test, linked to its room and registered with ctest.

find_package(GTest REQUIRED)

# A test that hangs is ended after this long. The longest, core_group_test under the thread sanitizer, takes 18 minutes
# on the slowest machine that we have seen, alone.
set(TREADLE_TEST_TIMEOUT 2400)

# The thread sanitizer of g++ 12 cannot place its shadow memory where the kernel spreads mappings over many bits: without
# randomised addresses it can. Not every container lets a process ask for that.
set(TREADLE_TEST_LAUNCHER)
if(TREADLE_SANITIZE MATCHES "thread")
  execute_process(COMMAND setarch -R true RESULT_VARIABLE noSetarch OUTPUT_QUIET ERROR_QUIET)
  if(noSetarch EQUAL 0)
    set(TREADLE_TEST_LAUNCHER setarch -R)
  endif()
endif()
set(tsanOptions second_deadlock_stack=1)
if(TREADLE_SANITIZE MATCHES "thread" AND TREADLE_WITH_TORCH)
  # It sees when a lock of libtorch is let go in a header, and not when it is taken in the library; likewise with threads,
  # which are told apart by addresses that may be used again. A path may have a blank, so it is quoted.
  list(APPEND tsanOptions report_mutex_bugs=0 report_thread_leaks=0 "suppressions='${PROJECT_SOURCE_DIR}/tests/tsan_libtorch.supp'")
endif()
list(JOIN tsanOptions ":" tsanOptions)
set(TREADLE_TEST_ENVIRONMENT "UBSAN_OPTIONS=print_stacktrace=1" "TSAN_OPTIONS=${tsanOptions}"
    "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:check_initialization_order=1")

# Tests are not optimized, only the product: optimizing the checks takes longer than running them as they are. That is not so
# under the thread sanitizer. Those with torch are excepted, as a precompiled header serves one level only.
function(treadle_compile_test target torch)
  if(NOT torch AND NOT TREADLE_SANITIZE MATCHES "thread")
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# treadle_test(NAME SOURCES files... DEPENDS targets... [TORCH])
function(treadle_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "SOURCES;DEPENDS")
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} GTest::gtest_main)
  treadle_compile_test(${name} ${arg_TORCH})
  if(TARGET treadle_test_support)
    target_link_libraries(${name} PRIVATE treadle_test_support)
  endif()
  if(arg_TORCH)
    treadle_use_torch_pch(${name})
  endif()
  # The report of each case lies beside the program: tools/run_tests.py counts cases, not programs.
  add_test(NAME ${name} COMMAND ${TREADLE_TEST_LAUNCHER} "$<TARGET_FILE:${name}>"
                                "--gtest_output=xml:${PROJECT_BINARY_DIR}/test-results/${name}.xml")
  # Those with the most files take longest as a rule: they begin first, or the others would be done before them.
  list(LENGTH arg_SOURCES cost)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TREADLE_TEST_TIMEOUT} COST ${cost} ENVIRONMENT "${TREADLE_TEST_ENVIRONMENT}")
endfunction()

# treadle_test_needs(FOLDER targets...): what the tests of a folder link besides their room.
function(treadle_test_needs folder)
  set_property(GLOBAL APPEND PROPERTY "TREADLE_TEST_NEEDS_${folder}" ${ARGN})
endfunction()

# The test program of one folder under tests/. Files named x_program.cc are programs of their own, which the tests start.
function(treadle_folder_test folder torch)
  string(REPLACE "/" "_" name "${folder}")
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${folder}/*.cc")
  set(programs ${sources})
  list(FILTER programs INCLUDE REGEX "_program\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_program\\.cc$")
  get_property(needs GLOBAL PROPERTY "TREADLE_TEST_NEEDS_${folder}")
  set(options)
  if(torch)
    set(options TORCH)
  endif()
  treadle_test(${name}_test SOURCES ${sources} DEPENDS ${needs} ${options})
  foreach(source IN LISTS programs)
    cmake_path(GET source STEM program)
    add_executable(${name}_${program} "${source}")
    set_target_properties(${name}_${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
    target_include_directories(${name}_${program} PRIVATE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${name}_${program} PRIVATE ${needs})
    if(torch)
      treadle_use_torch_pch(${name}_${program})
    endif()
    add_dependencies(${name}_test ${name}_${program})
  endforeach()
endfunction()

# Every folder of tests/ that holds tests. A room's tests wait for their room; the others link all of core, or all there is.
function(treadle_all_folder_tests)
  file(GLOB tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/*/*_test.cc" "${PROJECT_SOURCE_DIR}/tests/*/*/*_test.cc")
  set(folders)
  foreach(test IN LISTS tests)
    cmake_path(GET test PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/tests")
    list(APPEND folders "${folder}")
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    treadle_room_target(room "${folder}")
    get_property(torch GLOBAL PROPERTY "TREADLE_ROOM_${folder}_TORCH")
    if(folder MATCHES "^(core|tensor|train)/|^cli$")
      if(TARGET ${room})
        treadle_test_needs(${folder} ${room})
        treadle_folder_test(${folder} "${torch}")
      endif()
    elseif(folder MATCHES "^(faults|fuzz)(/|$)")
      treadle_test_needs(${folder} treadle::core)
      treadle_folder_test(${folder} FALSE)
    elseif(TREADLE_WITH_TORCH AND NOT folder MATCHES "^(jobs|package|support)(/|$)")
      treadle_test_needs(${folder} treadle::treadle)
      treadle_folder_test(${folder} TRUE)
    endif()
  endforeach()
endfunction()
