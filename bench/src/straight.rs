//! `straight`: trivial kernels in a straight line, through a session, beside a bare indirect call.
//!
//! A chain of 1,000 additions of one element, each a separate launch that waits for the one before. Its time divided by its
//! length is the cost of a kernel in a program, including the run's fixed costs. Case `straight` adds 64-bit integers, as
//! the peers' workloads do; `straight-f32` adds floats, whose path through memory between additions dominates the time.

use crate::launch::bare_calls;
use crate::measure::{Subject, passes};
use crate::peers::Peers;
use crate::ran::Ran;
use crate::rows::Rows;
use crate::{ran, setup};
use anyhow::{Context, Result, ensure};
use devbay_core::Tensor;
use devbay_core::exec::host_io::InputView;
use devbay_host::{Model, RunOptions, Session};
use std::time::Duration;

const N: usize = 1000;

pub fn run(rows: &mut Rows, _peers: &Peers, n_passes: usize) -> Result<()> {
    let ints = [1i64, 1 + N as i64];
    let floats = [1.0f32, 1.0 + N as f32];
    case(
        rows,
        "straight",
        &Tensor::from_elements(&[1], &ints[..1])?,
        bytemuck::bytes_of(&ints[1]),
        n_passes,
    )?;
    case(
        rows,
        "straight-f32",
        &Tensor::from_elements(&[1], &floats[..1])?,
        bytemuck::bytes_of(&floats[1]),
        n_passes,
    )
}

fn case(rows: &mut Rows, name: &str, one: &Tensor, expected: &[u8], n_passes: usize) -> Result<()> {
    let runtime = setup::runtime(1)?;
    let (model, device) = (Model::from_program(setup::chain_of_adds(N, one)?), setup::device(&runtime)?);
    let session = Session::with_options(&model, &device, setup::of_launches())?;
    let counts = ran::count(&model, &device, setup::of_launches(), &[("x", one)])?;
    let input = InputView::of(one);
    let plan = session.plan_for_types(&[input.ty()])?;
    let steps = plan.single().context("a chain is a straight section")?.section.steps.len();
    ensure!(steps == N, "{steps} launches, expected {N}");
    let mut y = [0u64];
    let mut failed = None;
    let figures = {
        let bytes = &mut bytemuck::bytes_of_mut(&mut y)[..expected.len()];
        let chain = Subject::new("devbay", N as f64, || {
            let result = session.run_into(&[input], &mut [&mut *bytes], &RunOptions::default());
            failed = failed.take().or(result.err());
        });
        passes(&mut [bare_calls(), chain], n_passes, Duration::from_millis(30))?
    };
    failed.map_or(Ok(()), |error| Err(anyhow::Error::from(error)))?;
    ensure!(&bytemuck::bytes_of(&y)[..expected.len()] == expected, "the chain gave another sum");
    rows.case("straight", name, 1, "ns", &figures, Ran::launches(N, counts.launches))
}
