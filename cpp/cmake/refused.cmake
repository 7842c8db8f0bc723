# Checks that COMPILER refuses case NUMBER of FILE in cpp/tests with a message that matches SAYS,
# and then touches TRIED.
get_filename_component(here "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only -I${here}/include -DREFUSED=${NUMBER} ${here}/tests/${FILE}
  RESULT_VARIABLE code ERROR_VARIABLE said)
if(code EQUAL 0 OR NOT said MATCHES "${SAYS}")
  message(FATAL_ERROR "tests/${FILE}: REFUSED=${NUMBER} compiles, or fails for another reason than \"${SAYS}\": ${said}")
endif()
file(TOUCH ${TRIED})
