# Whether COMPILER refuses the NUMBERth closure of tests/closures.cpp, for the reason that the headers give; then TRIED is touched.
get_filename_component(here "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only -I${here}/include -DREFUSED=${NUMBER} ${here}/tests/closures.cpp
  RESULT_VARIABLE code ERROR_VARIABLE said)
if(code EQUAL 0 OR NOT said MATCHES "destroys twice")
  message(FATAL_ERROR "tests/closures.cpp: REFUSED=${NUMBER} compiles, or fails for another reason: ${said}")
endif()
file(TOUCH ${TRIED})
