//! Each limit, given to the command: larger values are refused, with the exit code and the sentence of `docs/limits.md`.

use crate::support::{Folder, command, finish};
use devbay_host::Tensor;
use devbay_host::arrays::write_npy;

/// Four nodes, two of them in a loop of three iterations.
const LOOP: &str = r#"devbay-program 1

program "loop"(%x: f32[1024]) {
  %n = const i64[] [3]
  %y: f32[1024] = Loop@25(%n, _, %x) body(%i: i64[], %go_on: bool[], %v: f32[1024]) {
    %a = Sin@22(%v)
    %b = Mul@14(%a, %v)
    return %go_on, %b
  }
  %z = Relu@14(%y)
  return %z
}
"#;

/// [`LOOP`] with an input as the number of iterations.
const LOOP_OF_N: &str = r#"devbay-program 1

program "loop"(%x: f32[4], %n: i64[]) {
  %y: f32[4] = Loop@25(%n, _, %x) body(%i: i64[], %go_on: bool[], %v: f32[4]) {
    %b = Sin@22(%v)
    return %go_on, %b
  }
  return %y
}
"#;

/// A loop that collects 4096 bytes per iteration, with an input as the number of iterations.
const COLLECTS: &str = r#"devbay-program 1

program "collects"(%x: f32[1024], %n: i64[]) {
  %y: f32[1024], %all: f32[c,1024] = Loop@25(%n, _, %x) body(%i: i64[], %go_on: bool[], %v: f32[1024]) {
    %b = Sin@22(%v)
    return %go_on, %b, %b
  }
  return %all
}
"#;

#[test]
fn what_is_above_a_limit_is_refused() {
    let folder = Folder::new();
    let n = folder.path("n.npy");
    write_npy(&n, &Tensor::from_elements(&[], &[100i64]).unwrap()).unwrap();
    for (program, limit, code, words) in [
        (LOOP, "nodes=3", 4, "the model has 4 nodes, expected at most 3 (limit nodes)"),
        (LOOP, "nesting=0", 4, "regions nest 1 deep, expected at most 0 (limit nesting)"),
        (LOOP, "trips=2", 4, "(limit trips)"),
        (LOOP_OF_N, "trips=2", 4, "(limit trips)"),
        (LOOP, "bytes=1024", 7, "(limit bytes)"),
        (COLLECTS, "bytes=100K", 7, "(limit bytes)"),
        (LOOP, "planning-time=0", 9, "(limit planning-time)"),
        (LOOP, "nodez=1", 2, "there is no limit `nodez`"),
        (LOOP, "nodes", 2, "limit is NAME=VALUE"),
        (LOOP, "nodes=many", 2, "limit nodes is a number, found `many`"),
    ] {
        let model = folder.write("model.devbay", program);
        for command_of in ["run", "bench"] {
            let mut run = command();
            run.arg(command_of).arg(&model).args(["--random", "1", "--limit", limit]);
            if program.contains("%n: i64[]") {
                run.arg("--input").arg(format!("n={}", n.display()));
            }
            let found = finish(&mut run);
            assert_eq!(found.code, code, "{limit}: {}", found.err);
            found.says(&[words]);
        }
    }
}
