//! A device for tests whose streams only queue: the test says when which of them executes its next command.
//!
//! A [`World`] has the queues of all devices of a runtime. In the mode `AtOnce` the call that enqueues a command
//! executes it; that is for the work before and after the tested runs. In the mode `Stepped` a test calls
//! [`World::step`]; in the mode `Free` threads of the world step at random. Data is computed and copied only when the
//! command is executed. Memory is full of garbage until it is written, and every operand is looked up among the
//! device's allocations. So a missing order gives a wrong result, and a missing copy a complaint.
//!
//! Forms of the plugin differ in what their streams can do: wait for each other or not, call back or be polled. Each
//! has the same devices, by their positions: two that work inline ([`INLINE`]), two that work in the host's memory
//! later ([`SHARED`]), two with a memory of their own ([`OWN`]).
#![allow(dead_code, reason = "each test that includes this module uses a part of it")]

mod kernels;
mod plugin;
pub mod program;
mod world;

pub use kernels::{add_up, is_odd, trips};
pub use plugin::FORMS;
pub use world::World;

/// Devices that work in the call.
pub const INLINE: [usize; 2] = [0, 1];
/// Devices that work later, in the host's memory.
pub const SHARED: [usize; 2] = [2, 3];
/// Devices that work later, in a memory of their own.
pub const OWN: [usize; 2] = [4, 5];
/// Devices of a form.
pub const N_DEVICES: usize = 6;

/// Execution of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The call that enqueues.
    AtOnce,
    /// The test.
    Stepped,
    /// Threads of the world.
    Free,
}

/// When a fault comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// The call that enqueues the command fails; nothing is enqueued.
    Enqueued,
    /// The command fails when it is executed.
    Executed,
}

/// The fault of one command of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Index among all executed commands, or among all enqueued commands and requested calls, from 0.
    pub nth: usize,
    /// Time of the fault.
    pub when: When,
    /// True if the device is lost too.
    pub lost: bool,
}
