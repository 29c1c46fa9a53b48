//! Tests of the counting of benchmarks; a separate file, because two programs count and only one has sessions.

use crate::ran::{Counts, Ran, count};
use crate::setup;
use anyhow::Result;
use devbay_host::{Model, PlanOptions, Tensor};

#[test]
fn a_row_that_says_more_than_ran_is_an_error_with_both_numbers() {
    assert!(Ran::launches(10, 10).check("b", "c").is_ok());
    let error = Ran::launches(10_000, 200).check("executor", "two-devices").expect_err("it ran less");
    assert_eq!(error.to_string(), "executor two-devices: the row says 10000 launches, counted 200");
    assert!(Ran::launches(0, 0).check("b", "c").is_err());
}

#[test]
fn launches_of_a_run_are_counted() -> Result<()> {
    let one = Tensor::from_elements(&[1], &[1.0f32])?;
    let model = Model::from_program(setup::chain_of_adds(7, &one)?);
    let runtime = setup::runtime(1)?;
    let device = setup::device(&runtime)?;
    let counts = count(&model, &device, setup::of_launches(), &[("x", &one)])?;
    assert_eq!(counts, Counts { launches: 7, programs: 0 });
    // The count detects that fusion leaves a single launch.
    let counts = count(&model, &device, PlanOptions::default(), &[("x", &one)])?;
    assert_eq!(counts.launches, 1);
    Ok(())
}
