//! The example of TFRT's authors: 18 scalars, each normalised by its own mean and deviation, become one vector that is.

use crate::library::library;
use devbay_host::internals::core::passes::Switches;
use devbay_host::internals::core::plan::Env;
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::tensor::F32;
use devbay_host::{Model, PlanOptions, Policy, Requirements, Runtime, Session, Tensor, TensorType};
use std::path::Path;

/// Rows of a batch.
const BATCH: usize = 3;

/// The program after the only pass of the example, for one row each.
const AFTER: &str = "\
  %joined: f32[3,18] = Concat@13(%age, %height, %weight, %pulse, %temperature, %oxygen, %systolic, %diastolic, \
%respiration, %glucose, %sodium, %potassium, %chloride, %calcium, %creatinine, %urea, %albumin, %haemoglobin) {axis = 1}
  %means = const f32[1,18] [52.0, 168.0, 74.0, 78.0, 37.0, 97.0, 126.0, 78.0, 16.0, 5.5, 140.0, 4.25, 102.0, 2.25, 80.0, \
5.0, 42.0, 140.0]
  %centred: f32[3,18] = Sub@14(%joined, %means)
  %deviations = const f32[1,18] [18.0, 9.5, 15.0, 12.0, 0.5, 2.0, 17.0, 11.0, 3.0, 1.5, 3.0, 0.5, 3.5, 0.125, 20.0, 1.75, \
4.0, 15.0]
  %features: f32[3,18] = Div@14(%centred, %deviations)
  return %features
";

#[test]
fn eighteen_scalars_are_normalised_as_one_vector() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/eighteen_scalars/program.txt");
    let model = Model::load(&file).expect("the example");
    let options = Runtime::builder().threads(1).plugin(library("cpu"));
    let runtime = options.build().expect("a runtime");
    let device = runtime.choose(&Policy::Auto, &Requirements::default()).expect("a device").device;
    let program = model.program();
    assert_eq!((program.main.inputs.len(), program.n_nodes()), (18, 37));

    // The program, before and after.
    let only = Switches::without(Switches::names().filter(|name| *name != "hoist-concat")).expect("names");
    let env = Env::new(&device, PlanOptions { passes: only, ..PlanOptions::default() });
    let types = vec![TensorType::new(F32, &[BATCH, 1]); 18];
    let (mut after, _) = env.specialised(program, &types).expect("the program for these types");
    let inputs: Vec<String> = program
        .main
        .inputs
        .iter()
        .map(|id| format!("%{}: f32[{BATCH},1]", program.value(*id).name))
        .collect();
    let expected = format!("devbay-program 1\n\nprogram \"\"({}) {{\n{AFTER}}}\n", inputs.join(", "));
    let mut expected = text::parse(&expected).expect("the program that it becomes");
    for program in [&mut after, &mut expected] {
        program.name.clear();
        program.values.iter_mut().for_each(|value| value.name = "".into());
    }
    assert_eq!(text::print(&after), text::print(&expected));

    // Its result, and the number of launches.
    let inputs: Vec<(String, Tensor)> = program
        .main
        .inputs
        .iter()
        .enumerate()
        .map(|(i, id)| {
            let values: Vec<f32> = (0..BATCH).map(|row| (i * 7 + row * 5) as f32).collect();
            let tensor = Tensor::from_elements(&[BATCH, 1], &values).expect("a tensor");
            (program.value(*id).name.to_string(), tensor)
        })
        .collect();
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let run = |passes: Switches| {
        let plans = PlanOptions { passes, ..PlanOptions::default() };
        let session = Session::with_options(&model, &device, plans).expect("a session");
        let plan = session.plan_for(&given).expect("a plan");
        let n_launches: usize = plan.sections().map(|section| section.n_launches()).sum();
        let results = session.run(&given).expect("results");
        (n_launches, results[0].elements::<f32>().expect("numbers of f32").to_vec())
    };
    let (plain, without, with) = (
        run(Switches::none()),
        run(Switches::without(["hoist-concat"]).expect("a name")),
        run(Switches::default()),
    );
    assert_eq!((plain.0, without.0, with.0), (37, 19, 2));
    // Every element goes through the same two ops, so that nothing is rounded otherwise.
    assert_eq!(with.1, plain.1);
    assert_eq!(without.1, plain.1);
    // Age 0, by 52 and 18; haemoglobin 129 in the last row, by 140 and 15.
    assert_eq!((plain.1[0], plain.1[53]), (-52.0 / 18.0, -11.0 / 15.0));
}
