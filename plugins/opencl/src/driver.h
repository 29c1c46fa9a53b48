/* driver.h - OpenCL, found when the plugin is created.
 *
 * A plugin that is linked against its driver cannot be loaded where there is none. This one asks for
 * the loader of OpenCL's drivers at run time, so that a machine without one has a plugin that says
 * so, and a host that lists it.
 */
#ifndef DRIVER_H
#define DRIVER_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <CL/cl_icd.h>

/* What is used of OpenCL 1.2. */
#define DRIVER_FUNCTIONS(X) \
    X(clGetPlatformIDs) \
    X(clGetPlatformInfo) \
    X(clGetDeviceIDs) \
    X(clGetDeviceInfo) \
    X(clCreateContext) \
    X(clReleaseContext) \
    X(clCreateBuffer) \
    X(clRetainMemObject) \
    X(clReleaseMemObject) \
    X(clCreateCommandQueue) \
    X(clReleaseCommandQueue) \
    X(clCreateProgramWithSource) \
    X(clCreateProgramWithBinary) \
    X(clBuildProgram) \
    X(clGetProgramInfo) \
    X(clGetProgramBuildInfo) \
    X(clReleaseProgram) \
    X(clCreateKernel) \
    X(clSetKernelArg) \
    X(clReleaseKernel) \
    X(clEnqueueNDRangeKernel) \
    X(clEnqueueReadBuffer) \
    X(clEnqueueWriteBuffer) \
    X(clEnqueueCopyBuffer) \
    X(clEnqueueMarkerWithWaitList) \
    X(clEnqueueBarrierWithWaitList) \
    X(clSetEventCallback) \
    X(clRetainEvent) \
    X(clReleaseEvent) \
    X(clFlush) \
    X(clFinish)

struct driver {
    void *library;
#define X(name) cl_api_##name name;
    DRIVER_FUNCTIONS(X)
#undef X
};

/* Opens the driver. Returns NULL, or what is missing: text that lives until the next call. */
const char *driver_open(struct driver *driver);

/* The name of OpenCL's code for an error. */
const char *driver_error(cl_int code);

#endif
