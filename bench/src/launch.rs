//! `launch`: one launch through the ABI, beside a bare indirect call.
//!
//! The bare call goes through a table of functions, as the steps of the launch loop are, with the same four arguments and an
//! empty body. devbay's is a kernel of the CPU plugin, loaded as a library: a sum of two numbers, with the function, state
//! and references from `prepare` and the planner.

use crate::measure::{Subject, passes};
use crate::peers::Peers;
use crate::ran::Ran;
use crate::rows::Rows;
use crate::{ran, setup};
use anyhow::{Context, Result};
use devbay_core::exec::frame::Frame;
use devbay_host::{Model, Session};
use devbay_plugin_api::abi::{BufferRef, DEVBAY_STATUS_OK, LaunchFn, Status, Stream};
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::time::Duration;

/// Launches per round.
const N: usize = 1000;

unsafe extern "C" fn nothing(
    _state: *const c_void,
    _stream: *mut Stream,
    _refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    DEVBAY_STATUS_OK
}

/// Returns rounds of bare calls: the yardstick of this benchmark and of `straight`.
pub fn bare_calls() -> Subject<'static> {
    let table: Vec<LaunchFn> = black_box(vec![nothing as LaunchFn; N]);
    let state = black_box(null::<c_void>());
    Subject::new("bare call", N as f64, move || {
        for call in &table {
            // SAFETY: the function uses none of its arguments.
            black_box(unsafe { call(state, null_mut(), null(), null()) });
        }
    })
}

pub fn run(rows: &mut Rows, _peers: &Peers, n_passes: usize) -> Result<()> {
    let runtime = setup::runtime_with_library(1, "cpu")?;
    let x = [1.0f32];
    let input = devbay_core::Tensor::from_elements(&[1], &x)?;
    let model = Model::from_program(setup::chain_of_adds(1, &input)?);
    let device = setup::device(&runtime)?;
    let session = Session::with_options(&model, &device, setup::of_launches())?;
    let counts = ran::count(&model, &device, setup::of_launches(), &[("x", &input)])?;
    let plan = session.plan_for(&[("x", &input)])?;
    let stage = plan.single().context("one addition is a straight line")?;
    let step = *stage.section.steps.first().context("it has a launch")?;
    let frame = Frame::new(&stage.section)?;
    let mut y = [0.0f32];
    let mut refs = stage.section.refs.to_vec();
    refs[0] = BufferRef { addr: x.as_ptr() as u64, length: 4, ..BufferRef::ABSENT };
    refs[2] = BufferRef { addr: y.as_mut_ptr() as u64, length: 4, ..BufferRef::ABSENT };
    let (stream, refs) = (black_box(frame.stream_handle()), black_box(refs));
    let launches = Subject::new("devbay", N as f64, || {
        for _ in 0..N {
            // SAFETY: function, state and references belong together; the operands are arrays of one element.
            black_box(unsafe { (black_box(step.launch))(step.state, stream, refs.as_ptr(), null()) });
        }
    });
    let figures = passes(&mut [bare_calls(), launches], n_passes, Duration::from_millis(30))?;
    anyhow::ensure!(y == [2.0], "the launched kernel gave {y:?}, expected [2.0]");
    rows.case("launch", "launch", 1, "ns", &figures, Ran::launches(1, counts.launches))
}
