# The language, the warnings and the sanitizers of every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

# Everything is position independent, programs too: the archives end up in shared objects, and one precompiled header serves
# libraries, tests and examples only when they are compiled with the same flags. -fno-semantic-interposition gives back the
# inlining that -fPIC would take away.
add_compile_options(-fPIC -fno-semantic-interposition -Wall -Wextra)
# __FILE__ in messages is the path inside the tree: what is installed names no folder of the machine that built it.
add_compile_options("-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
option(TREADLE_WERROR "Warnings are errors" ${PROJECT_IS_TOP_LEVEL})
if(TREADLE_WERROR)
  add_compile_options(-Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  # g++ 12 sees overlapping copies in std::string's own operator+ (GCC bug 105651), and, where it inlines
  # std::vector<std::byte>::insert at the end of a vector, a move of elements that are not there.
  add_compile_options(-Wno-restrict -Wno-stringop-overflow)
  # At -O2 it follows a string's length into sizes that cannot be.
  add_compile_options(-Wno-array-bounds)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # The C++ library of g++ 12 uses std::get_temporary_buffer inside std::stable_sort, and marks it deprecated.
  add_compile_options(-Wno-deprecated-declarations)
  # What base/mutex.h says of locks is checked where clang compiles: in the presets of the sanitizers.
  add_compile_options(-Wthread-safety)
endif()
# Several files of a target compiled as one, which the presets but coverage ask for, as most of the compiler's time goes into
# headers: what is unnamed in one of them seems to g++ to stand in a header.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-subobject-linkage)
endif()

if(TREADLE_SANITIZE)
  add_compile_options(-fsanitize=${TREADLE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TREADLE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The instrumentation confuses g++'s flow analysis; builds without it keep the warnings.
    add_compile_options(-Wno-maybe-uninitialized)
    if(TREADLE_SANITIZE MATCHES "thread")
      # g++ warns of every atomic_thread_fence, also of those inside the standard library.
      add_compile_options(-Wno-tsan)
    endif()
  endif()
endif()

# Coverage of the branches, by which libFuzzer finds its way; the fuzzers themselves link it (tests/fuzz/CMakeLists.txt).
if(TREADLE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# The counters lie in the file from the start: those of a process that is killed count too.
if(TREADLE_COVERAGE)
  add_compile_options(-fprofile-instr-generate -fcoverage-mapping "SHELL:-mllvm -runtime-counter-relocation")
  add_link_options(-fprofile-instr-generate)
endif()

# ccache, where there is one. Two checkouts share its entries: paths within the tree are hashed as relative ones, and the
# folder of the compilation is not hashed. ccache hashes the language of the messages, so all are compiled in one. The
# sloppiness is what ccache asks for before it looks into precompiled headers.
find_program(TREADLE_CCACHE ccache)
mark_as_advanced(TREADLE_CCACHE)
if(TREADLE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths with spaces stay as they are in the dependencies of an object (ccache 4.7): in another checkout it would not be
  # made anew when its sources change. So a checkout with such a path shares nothing.
  set(cacheNamespace)
  if(CMAKE_SOURCE_DIR MATCHES " ")
    string(MD5 pathHash "${CMAKE_SOURCE_DIR}")
    set(cacheNamespace "CCACHE_NAMESPACE=${pathHash};")
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;--unset=LC_ALL;--unset=LC_CTYPE;--unset=LC_MESSAGES;LANG=C.UTF-8;CCACHE_BASEDIR=${CMAKE_SOURCE_DIR};CCACHE_NOHASHDIR=1;${cacheNamespace}CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime;${TREADLE_CCACHE}")
endif()
