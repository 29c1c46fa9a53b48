/* driver.c - finds OpenCL's functions. */
#include "driver.h"

#include <dlfcn.h>
#include <stddef.h>

const char *driver_open(struct driver *driver) {
    driver->library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL) {
        return dlerror();
    }
    /* It stays open: drivers have threads of their own, which outlive what they were asked for. */
#define X(name) \
    *(void **)&driver->name = dlsym(driver->library, #name); \
    if (driver->name == NULL) { \
        return "libOpenCL.so.1 has no " #name ": OpenCL 1.2 is needed"; \
    }
    DRIVER_FUNCTIONS(X)
#undef X
    return NULL;
}

const char *driver_error(cl_int code) {
    switch (code) {
#define X(name) \
    case name: \
        return #name;
        X(CL_DEVICE_NOT_FOUND)
        X(CL_DEVICE_NOT_AVAILABLE)
        X(CL_COMPILER_NOT_AVAILABLE)
        X(CL_MEM_OBJECT_ALLOCATION_FAILURE)
        X(CL_OUT_OF_RESOURCES)
        X(CL_OUT_OF_HOST_MEMORY)
        X(CL_BUILD_PROGRAM_FAILURE)
        X(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
        X(CL_INVALID_VALUE)
        X(CL_INVALID_BUFFER_SIZE)
        X(CL_INVALID_KERNEL_NAME)
        X(CL_INVALID_KERNEL_ARGS)
        X(CL_INVALID_ARG_INDEX)
        X(CL_INVALID_ARG_SIZE)
        X(CL_INVALID_ARG_VALUE)
        X(CL_INVALID_WORK_GROUP_SIZE)
        X(CL_INVALID_GLOBAL_WORK_SIZE)
        X(CL_INVALID_MEM_OBJECT)
        X(CL_INVALID_COMMAND_QUEUE)
#undef X
    default:
        return "an error of OpenCL";
    }
}
