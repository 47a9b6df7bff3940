# Finds libtorch inside the `torch` package of Python and makes the imported target treadle::torch.
#
# Not TorchConfig.cmake: that of the CUDA wheel fails on a machine without the CUDA toolkit, although libc10 and libtorch_cpu,
# all that Treadle links, are there. Installed along with Treadle, so it also runs in the projects of others.
#
# Looked for, in this order: the variable TREADLE_TORCH_DIR (the folder `torch` of site-packages), the environment variable of
# that name, `.venv` in the source tree, and the torch that `python3` would import.
set(TREADLE_TORCH_OLDEST 2.11)
set(TREADLE_TORCH_DIR "$CACHE{TREADLE_TORCH_DIR}" CACHE PATH "The folder of the Python package torch, 2.11 or newer")

# Sets `out` to the first folder of torch that is there, or to nothing.
function(_treadle_torch_folder out)
  if(TREADLE_TORCH_DIR)
    set(${out} "${TREADLE_TORCH_DIR}" PARENT_SCOPE)
    return()
  endif()
  if(NOT "$ENV{TREADLE_TORCH_DIR}" STREQUAL "")
    set(${out} "$ENV{TREADLE_TORCH_DIR}" PARENT_SCOPE)
    return()
  endif()
  file(GLOB inTree "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  foreach(folder IN LISTS inTree)
    if(EXISTS "${folder}/lib/libtorch_cpu.so")
      set(${out} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  # find_spec tells where the package lies without the seconds that importing it takes.
  execute_process(
    COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(${out} "${folder}" PARENT_SCOPE)
  else()
    set(${out} "" PARENT_SCOPE)
  endif()
endfunction()

# Checks the folder: sets TreadleTorch_VERSION, or `problem` to a sentence.
function(_treadle_torch_check folder problem)
  set(${problem} "" PARENT_SCOPE)
  if(NOT folder)
    set(${problem} "No torch was found: run `make setup`, or set TREADLE_TORCH_DIR to the folder of the Python package torch." PARENT_SCOPE)
    return()
  endif()
  foreach(file IN ITEMS lib/libc10.so lib/libtorch_cpu.so lib/libtorch.so include/ATen/ATen.h version.py)
    if(NOT EXISTS "${folder}/${file}")
      set(${problem} "${folder} is no folder of the Python package torch: ${file} is missing in it." PARENT_SCOPE)
      return()
    endif()
  endforeach()
  file(STRINGS "${folder}/version.py" line REGEX "^__version__ *= *'" LIMIT_COUNT 1)
  string(REGEX MATCH "[0-9]+\\.[0-9]+(\\.[0-9]+)?" version "${line}")
  if(NOT version OR version VERSION_LESS TREADLE_TORCH_OLDEST)
    set(${problem} "The torch in ${folder} is ${version}; Treadle needs ${TREADLE_TORCH_OLDEST} or newer." PARENT_SCOPE)
    return()
  endif()
  file(STRINGS "${folder}/lib/libc10.so" newAbi REGEX "__cxx11" LIMIT_COUNT 1)
  if(NOT newAbi)
    set(${problem} "The torch in ${folder} was built with the C++ library's old ABI; Treadle needs the new one." PARENT_SCOPE)
    return()
  endif()
  set(TreadleTorch_VERSION "${version}" PARENT_SCOPE)
endfunction()

function(_treadle_torch_target folder)
  foreach(name IN ITEMS c10 torch_cpu)
    add_library(treadle::${name} SHARED IMPORTED GLOBAL)
    set_target_properties(treadle::${name} PROPERTIES IMPORTED_LOCATION "${folder}/lib/lib${name}.so")
  endforeach()
  add_library(treadle::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(treadle::torch INTERFACE "${folder}/include" "${folder}/include/torch/csrc/api/include")
  target_compile_definitions(treadle::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  target_compile_features(treadle::torch INTERFACE cxx_std_20)
  target_link_libraries(treadle::torch INTERFACE treadle::torch_cpu treadle::c10)
  # libtorch_cpu of the CUDA wheel names libraries that lie in other Python packages: the loader finds them by the run path
  # inside it, and the linker need not look for them.
  target_link_options(treadle::torch INTERFACE "LINKER:--allow-shlib-undefined")
endfunction()

# The targets are global and the variables are of the directory that looks: a second one finds the targets there.
set(TreadleTorch_DIR_FOUND "")
set(_treadle_torch_problem "")
_treadle_torch_folder(TreadleTorch_DIR_FOUND)
_treadle_torch_check("${TreadleTorch_DIR_FOUND}" _treadle_torch_problem)
if(NOT TARGET treadle::torch AND NOT _treadle_torch_problem)
  _treadle_torch_target("${TreadleTorch_DIR_FOUND}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TreadleTorch REQUIRED_VARS TreadleTorch_DIR_FOUND TreadleTorch_VERSION VERSION_VAR TreadleTorch_VERSION
  REASON_FAILURE_MESSAGE "${_treadle_torch_problem}")
