//! Written files can be read again, and altered ones are refused.

use super::decode::Weights;
use super::form::{CHECKSUM, FIXED, LINE, SMALL_BYTES_MAX, checksum};
use super::{Checks, Head, decode, encode, from_bytes, start};
use devbay_core::error::ErrorKind;
use devbay_core::program::text;
use devbay_core::program::verify::REGION_DEPTH_MAX;
use devbay_core::program::{AttrValue, Program, Value};
use devbay_core::tensor::Tensor;
use std::sync::Arc;

const TEXT: &str = r#"devbay-program 1

program "m"(%x: f32[batch,3], %n: i64[]) {
  %k = const f32[3] [1.0, 2.0, 3.0]
  %y: f32[?,3] = Mul@14(%x, %k) as "a node"
  %trips = const i64[] [4]
  %go = const bool[] [true]
  %z: f32[..] = Loop@25(%trips, %go, %y) body(%i: i64[], %c: bool[], %v: f32[..]) {
    %w: f32[..] = Add@14(%v, %k)
    return %c, %w
  }
  return %y, %z
}
"#;

fn program() -> Program {
    text::parse(TEXT).expect("a program")
}

/// Returns a file with a program, a large constant and no plans.
fn file(program: &Program) -> Vec<u8> {
    let mut pool = encode::Pool::default();
    let model = pool.program(program).unwrap();
    let rest = Head {
        made_by: "test",
        weights: Vec::new(),
        tensors: Vec::new(),
        model,
        passes: Vec::new(),
        off: vec!["simplify"],
        pins: vec![("a node", "cpu:0")],
        plans: Vec::new(),
        packed: Vec::new(),
    };
    let (head, weights) = pool.into_head(rest);
    let mut file = start(&head).unwrap();
    let begin = file.len();
    for (weight, bytes) in head.weights.iter().zip(weights) {
        file.resize(begin + weight.offset as usize, 0);
        file.extend_from_slice(bytes);
    }
    file
}

fn with_weight() -> Program {
    let mut program = program();
    let elements: Vec<f32> = (0..SMALL_BYTES_MAX).map(|i| i as f32).collect();
    let large = Tensor::from_elements(&[SMALL_BYTES_MAX], &elements).unwrap();
    program.add_constant("large", large.clone());
    // The same bytes in another shape, and a copy of them, are one weight.
    program.add_constant("reshaped", large.reshaped(&[2, SMALL_BYTES_MAX / 2]).unwrap());
    program.add_constant("copy", Tensor::from_elements(&[SMALL_BYTES_MAX], &elements).unwrap());
    let attrs = [
        ("int", AttrValue::Int(-3)),
        ("float", AttrValue::Float(0.5)),
        ("string", AttrValue::String("text".to_owned())),
        ("ints", AttrValue::Ints(vec![1, -1])),
        ("floats", AttrValue::Floats(vec![0.25])),
        ("strings", AttrValue::Strings(vec!["a".to_owned(), String::new()])),
        ("tensor", AttrValue::Tensor(large)),
    ];
    for (name, value) in attrs {
        program.main.nodes[0].set_attr(name, value);
    }
    program
}

#[test]
fn programs_are_read_as_they_were_written() {
    let program = with_weight();
    let file = file(&program);
    let read = from_bytes(file.clone().into(), Checks::Weights).unwrap();
    assert_eq!(text::print(&read.program), text::print(&program));
    assert_eq!((read.off, read.pins), (vec!["simplify".to_owned()], vec![("a node".into(), "cpu:0".into())]));
    let weights = |program: &Program| {
        let constants = program.values.iter().filter_map(|value| value.constant.clone());
        constants.filter(|tensor| tensor.bytes().len() > SMALL_BYTES_MAX).collect::<Vec<_>>()
    };
    let identities: Vec<_> = weights(&read.program).iter().map(Tensor::identity).collect();
    assert_eq!(identities, vec![identities[0]; 3]);
    assert!(file.len() < 2 * 4 * SMALL_BYTES_MAX + 4096);
}

/// A later release may add sections.
#[test]
fn unknown_sections_are_skipped() {
    let mut file = file(&program());
    let head_at = FIXED + 2 * LINE;
    let line: Vec<u8> =
        [77u32.to_le_bytes().as_slice(), &[0; 4], &u64::MAX.to_le_bytes(), &u64::MAX.to_le_bytes()].concat();
    file.splice(head_at..head_at, line);
    // There is room between the head and the weights.
    let covered = u64::from_le_bytes(file[24..32].try_into().unwrap()) as usize + LINE;
    file.drain(covered..covered + LINE);
    file[12..16].copy_from_slice(&3u32.to_le_bytes());
    file[24..32].copy_from_slice(&(covered as u64).to_le_bytes());
    let at = FIXED + 8;
    file[at..at + 8].copy_from_slice(&((head_at + LINE) as u64).to_le_bytes());
    let sum = checksum(&file[..covered]);
    file[CHECKSUM].copy_from_slice(&sum);
    let read = from_bytes(file.into(), Checks::Weights).unwrap();
    assert_eq!(text::print(&read.program), text::print(&program()));
}

#[test]
fn other_versions_say_what_to_do() {
    let mut file = file(&program());
    file[8] = 9;
    let error = from_bytes(file.into(), Checks::Head).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidModel);
    assert!(error.text().contains("form 9, this reads form 1; compile the model again"), "{error}");
}

#[test]
fn a_changed_weight_is_found_when_it_is_looked_for() {
    let mut file = file(&with_weight());
    *file.last_mut().unwrap() ^= 1;
    assert!(from_bytes(file.clone().into(), Checks::Head).is_ok());
    let error = from_bytes(file.into(), Checks::Weights).err().unwrap();
    assert!(error.text().contains("weight 0"), "{error}");
}

/// Regions form a list, each after those nested in it. Walking them recurses, so their depth is bounded.
#[test]
fn regions_have_one_place_and_a_bound() {
    let source = program();
    let decoded = |change: &dyn Fn(&mut super::ProgramForm<'_>)| {
        let mut pool = encode::Pool::default();
        let mut form = pool.program(&source).unwrap();
        change(&mut form);
        let none = Weights { file: Arc::new(Vec::new()), places: Vec::new() };
        let rest = Head {
            made_by: "",
            weights: Vec::new(),
            tensors: Vec::new(),
            model: encode::Pool::default().program(&EMPTY).unwrap(),
            passes: Vec::new(),
            off: Vec::new(),
            pins: Vec::new(),
            plans: Vec::new(),
            packed: Vec::new(),
        };
        let (head, _) = pool.into_head(rest);
        let tensors = decode::tensors(&head.tensors, &none).unwrap();
        decode::program(&form, &tensors).map_err(|error| error.text().to_owned())
    };
    assert!(decoded(&|_| {}).is_ok());
    let refused = |change: &dyn Fn(&mut super::ProgramForm<'_>), text: &str| {
        let error = decoded(change).expect_err(text);
        assert!(error.contains(text), "{error}");
    };
    refused(&|form| form.regions.clear(), "without a region");
    refused(&|form| form.regions[1].nodes[1].regions[0].1 = 1, "a region that is not there");
    refused(&|form| form.regions[1].nodes[1].regions.clear(), "a region that no node has");
    refused(
        &|form| {
            let again = form.regions[1].nodes[1].regions[0];
            form.regions[1].nodes[1].regions.push(again);
        },
        "a region that is not there",
    );
    refused(&|form| form.values[2].constant = Some(99), "tensor 99 is not there");
    refused(&|form| form.regions[1].outputs[0] = 99, "99");
    let deep = |form: &mut super::ProgramForm<'_>| {
        let wrap = |number: u32| super::form::RegionForm {
            inputs: Vec::new(),
            nodes: vec![super::form::NodeForm {
                name: "",
                op: ("", "If", 25),
                inputs: Vec::new(),
                outputs: Vec::new(),
                attrs: Vec::new(),
                regions: vec![("then_branch", number)],
            }],
            outputs: Vec::new(),
        };
        for _ in 0..100_000 {
            form.regions.push(wrap(form.regions.len() as u32 - 1));
        }
    };
    refused(&deep, &format!("deeper than {REGION_DEPTH_MAX}"));
}

static EMPTY: Program = Program {
    name: String::new(),
    values: Vec::<Value>::new(),
    main: devbay_core::program::Region { inputs: Vec::new(), nodes: Vec::new(), outputs: Vec::new() },
};
