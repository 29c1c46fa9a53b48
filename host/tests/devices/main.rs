//! Sessions and the executor on devices that are made for these tests: plugins that are written on the SDK and linked,
//! so that what a device does, and when, is decided by the test.
//!
//! One program, because each that is linked takes seconds.

#[path = "../adder/mod.rs"]
mod adder;
mod come_and_go;
mod compiles;
mod failover;
mod gathers;
mod graphs;
mod limits;
mod loops;
mod numerics;
mod points;
#[path = "../queued/mod.rs"]
mod queued;
mod runs;
mod session;
mod stepped;
mod tasks;
