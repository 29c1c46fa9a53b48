//! The cases, one file a topic, in the order of the data: a plugin is loaded and negotiated with, its devices
//! give memory, memory is copied on streams, kernels are prepared and launched, and everything ends.

mod compile;
mod devices;
mod error;
mod event;
mod fault;
mod figure;
mod interop;
mod kernel;
mod launch;
mod load;
mod memory;
mod negotiate;
pub(crate) mod numerics;
mod replay;
mod shutdown;
mod stream;
mod stress;
mod transfer;
mod values;

use crate::case::Case;

/// Every list, in the order in which its cases run.
pub(crate) fn lists() -> Vec<&'static [Case]> {
    vec![
        load::CASES,
        negotiate::CASES,
        devices::CASES,
        error::CASES,
        memory::CASES,
        stream::CASES,
        event::CASES,
        transfer::CASES,
        event::ORDER_CASES,
        kernel::CASES,
        launch::CASES,
        values::CASES,
        replay::CASES,
        interop::CASES,
        compile::CASES,
        compile::claims::CASES,
        compile::graph::CASES,
        compile::stored::CASES,
        numerics::cases().leak(),
        numerics::specials().leak(),
        shutdown::CASES,
        stress::CASES,
        fault::CASES,
        figure::CASES,
        shutdown::LAST_CASES,
    ]
}
