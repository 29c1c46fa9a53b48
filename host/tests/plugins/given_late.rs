//! A shape or axes that come with a run have the verdict and the result that they have as a constant.
//!
//! Generated: ops whose second operand says what the result's shape is, operands of 0 to 2 dimensions of 0 to 2 elements, and
//! lists of up to two numbers, also where the result's type seems to be known before the list is.

use devbay_host::internals::core::program::text;
use devbay_host::{Error, ErrorKind, Model, Runtime, Session, Tensor};

use crate::library::library;

const OPS: &[&str] =
    &["Reshape@25", "Squeeze@25", "Unsqueeze@25", "Expand@13", "Tile@13", "ReduceSum@13", "CenterCropPad@18"];

/// A result: its shape and its elements.
type Outcome = Result<(Vec<usize>, Vec<f32>), Error>;

/// Every list of up to `most` of the numbers.
fn lists<T: Copy>(numbers: &[T], most: usize) -> Vec<Vec<T>> {
    let mut all = vec![Vec::new()];
    let mut last = all.clone();
    for _ in 0..most {
        let longer = |list: &Vec<T>| -> Vec<Vec<T>> {
            numbers.iter().map(|number| [&list[..], &[*number]].concat()).collect()
        };
        last = last.iter().flat_map(longer).collect();
        all.extend(last.iter().cloned());
    }
    all
}

fn typed(dtype: &str, shape: &[usize]) -> String {
    format!("{dtype}{shape:?}").replace(' ', "")
}

/// A program of one op of `x` and a list, each of which is a constant or comes with the run; `result` is the result's type, if it
/// is stated.
fn program(op: &str, x: &Tensor, list: &Tensor, are_constant: [bool; 2], result: Option<&[usize]>) -> String {
    let of_x = typed("f32", x.shape());
    let of_list = typed("i64", list.shape());
    let floats: Vec<String> =
        x.elements::<f32>().expect("floats").iter().map(|number| format!("{number:?}")).collect();
    let numbers: Vec<String> = list.elements::<i64>().expect("numbers").iter().map(i64::to_string).collect();
    let operands = [("x", of_x, floats), ("l", of_list, numbers)];
    let (mut inputs, mut constants) = (Vec::new(), String::new());
    for ((name, ty, elements), is_constant) in operands.into_iter().zip(are_constant) {
        match is_constant {
            true => constants.push_str(&format!("  %{name} = const {ty} [{}]\n", elements.join(", "))),
            false => inputs.push(format!("%{name}: {ty}")),
        }
    }
    let result = result.map(|shape| format!(": {}", typed("f32", shape))).unwrap_or_default();
    format!(
        "devbay-program 1\n\nprogram \"p\"({}) {{\n{constants}  %y{result} = {op}(%x, %l)\n  return %y\n}}\n",
        inputs.join(", ")
    )
}

fn run(runtime: &Runtime, source: &str, given: &[(&str, &Tensor)]) -> Outcome {
    let program = text::parse(source).unwrap_or_else(|error| panic!("{error}\n{source}"));
    let session = Session::new(&Model::from_program(program), &runtime.devices()[0])?;
    let results = session.run(given)?;
    Ok((results[0].shape().to_vec(), results[0].elements::<f32>().expect("floats").to_vec()))
}

fn are_one(constant: &Outcome, late: &Outcome) -> bool {
    match (constant, late) {
        (Ok(constant), Ok(late)) => constant == late,
        (Err(constant), Err(late)) => {
            [constant, late].iter().all(|error| error.kind() != ErrorKind::Internal)
        }
        _ => false,
    }
}

#[test]
fn what_comes_with_a_run_is_looked_at_as_a_constant_is() {
    let options = Runtime::builder().threads(1).plugin(library("cpu"));
    let runtime = options.build().expect("the plugin loads");
    let mut wrong = Vec::new();
    let (mut n_good, mut n_bad) = (0, 0);
    for shape in lists(&[0, 1, 2], 2) {
        let n: usize = shape.iter().product();
        let numbers: Vec<f32> = (1..=n).map(|i| i as f32).collect();
        let x = Tensor::from_elements(&shape, &numbers).expect("a tensor");
        let mut all: Vec<(Vec<usize>, Vec<i64>)> =
            lists(&[-1, 0, 1, 2], 2).into_iter().map(|list| (vec![list.len()], list)).collect();
        // A scalar stands for a list of one with some of the ops.
        all.extend([-1, 0, 1].map(|number| (Vec::new(), vec![number])));
        for (op, (of_list, list)) in OPS.iter().flat_map(|op| all.iter().map(move |list| (op, list))) {
            let list = Tensor::from_elements(of_list, list).expect("a tensor");
            // Types that a model states do not limit the types that come with a run: the operand's own, which makes the
            // op do nothing, one of as many elements, and no type.
            for stated in [None, Some(&shape[..]), Some(&[n][..])] {
                let source = |are_constant| program(op, &x, &list, are_constant, stated);
                let constant = run(&runtime, &source([false, true]), &[("x", &x)]);
                *(if constant.is_ok() { &mut n_good } else { &mut n_bad }) += 1;
                let late = [
                    run(&runtime, &source([false, false]), &[("x", &x), ("l", &list)]),
                    run(&runtime, &source([true, false]), &[("l", &list)]),
                    run(&runtime, &source([true, true]), &[]),
                ];
                for late in late.into_iter().filter(|late| !are_one(&constant, late)) {
                    let list = list.elements::<i64>().expect("numbers");
                    wrong.push(format!(
                        "{op} of {shape:?} by {list:?}, stated {stated:?}: {constant:?}, otherwise {late:?}"
                    ));
                }
            }
        }
    }
    assert!(n_good > 400 && n_bad > 400, "{n_good} that run, {n_bad} that do not");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
