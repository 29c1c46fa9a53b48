//! Runs that end early: cancelled, or past their deadline. The next run is unaffected.
//!
//! `cargo run -p devbay-host --example 07_cancel [PLUGIN]`; without a plugin, the CPU plugin is used.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

#[expect(dead_code, reason = "this example has a model and inputs of its own")]
mod setup;

use devbay_host::{Cancel, Model, Result, RunOptions, Session, Tensor};
use std::time::Duration;

/// Adds `x` to itself `n` times.
const LOOP: &str = r#"devbay-program 1

program "loop"(%n: i64[], %x: f32[4]) {
  %y: f32[4] = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %s: f32[4]) {
    %t: f32[4] = Add@14(%s, %x)
    return %go, %t
  }
  return %y
}
"#;

fn main() -> Result<()> {
    let (_runtime, device, _) = setup::runtime_and_model()?;
    let session = Session::new(&Model::from_text(LOOP)?, &device)?;
    let x = Tensor::from_elements(&[4], &[1.0f32; 4])?;
    let forever = Tensor::from_elements(&[], &[i64::MAX])?;
    let endless: [(&str, &Tensor); 2] = [("n", &forever), ("x", &x)];

    let deadline = Some(Duration::from_millis(50));
    let late = session.run_with(&endless, &RunOptions { deadline, ..RunOptions::default() });
    println!("with a deadline: {}", late.err().map(|error| error.to_string()).unwrap_or_default());

    // A flag that another thread sets; on a runtime of several threads `Run::cancel` does the same.
    let cancel = Cancel::new();
    let cancelled = std::thread::scope(|scope| {
        let options = RunOptions { cancel: Some(cancel.clone()), ..RunOptions::default() };
        let run = scope.spawn(move || session.run_with(&endless, &options).map(|_| ()));
        std::thread::sleep(Duration::from_millis(50));
        cancel.cancel();
        run.join()
    });
    println!("cancelled: {}", cancelled.map(|run| run.unwrap_err().to_string()).unwrap_or_default());
    Ok(())
}
