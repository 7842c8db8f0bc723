# Defines upshift::upshift (static) and upshift::shared from UPSHIFT_INCLUDE, UPSHIFT_LIB,
# UPSHIFT_ABI (the version of the ABI) and UPSHIFT_SHARED (the shared library, by the name that
# programs look for).
add_library(upshift::upshift STATIC IMPORTED)
set_target_properties(upshift::upshift PROPERTIES
  IMPORTED_LOCATION "${UPSHIFT_LIB}/libupshift_c.a"
  INTERFACE_INCLUDE_DIRECTORIES "${UPSHIFT_INCLUDE}"
  INTERFACE_COMPILE_FEATURES cxx_std_20
  INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
add_library(upshift::shared SHARED IMPORTED)
set_target_properties(upshift::shared PROPERTIES
  IMPORTED_LOCATION "${UPSHIFT_SHARED}"
  IMPORTED_SONAME libupshift_c.so.${UPSHIFT_ABI}
  INTERFACE_INCLUDE_DIRECTORIES "${UPSHIFT_INCLUDE}"
  INTERFACE_COMPILE_FEATURES cxx_std_20
  INTERFACE_LINK_LIBRARIES Threads::Threads)
