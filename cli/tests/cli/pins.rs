//! Several devices in one run: pinned nodes, and nodes that a device has no kernel for.

use crate::support::{Finished, Folder, UNTIL, devbay};
use devbay_host::{Tensor, arrays};
use std::path::Path;

/// Forms of two devices of the CPU plugin.
const FORMS: [&str; 4] = ["inline,inline", "inline,async", "async,inline", "async,async"];

fn run(form: &str, more: &[&str]) -> Finished {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn");
    let path = |file: &str| folder.join(file).display().to_string();
    let (model, inputs, outputs) = (path("model.onnx"), path("case0.inputs.npz"), path("case0.outputs.npz"));
    let option = format!("cpu.streams={form}");
    let mut arguments = vec!["run", &model, "--input", &inputs, "--compare", &outputs];
    arguments.extend(["--device", "cpu:0", "--plugin-option", &option]);
    arguments.extend(more);
    devbay(arguments)
}

#[test]
fn pinned_nodes_run_on_their_device_with_the_same_result() {
    for form in FORMS {
        for threads in ["1", "2"] {
            run(form, &["--threads", threads, "--explain", "--pin", "node_Conv_3=cpu:1"])
                .expect(0)
                .says(&["placed  cpu:1        node_Conv_3"]);
            run(
                form,
                &["--threads", threads, "--pin", "node_MaxPool_2=cpu:1", "--pin", "node_Gemm_15=cpu:1"],
            )
            .expect(0);
        }
    }
}

#[test]
fn a_plan_on_two_devices_shows_the_copies_and_who_waits_for_whom() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn/model.onnx");
    let model = model.display().to_string();
    let option = "cpu.streams=inline,async";
    // Without transpositions, so that a node of the model reads what is copied back.
    let switched = ["--no-pass", "channels-last", "--plugin-option", option];
    let pinned = [&switched[..], &["--device", "cpu:0", "--pin", "node_MaxPool_2=cpu:1"]].concat();
    devbay([&["inspect", &model, "--plan"][..], &pinned].concat()).expect(0).prints(&[
        "section on cpu:0 and cpu:1",
        "copy to cpu:1 for node_MaxPool_2",
        "wait for copies to cpu:1",
        "copy from cpu:1 for node_Conv_3",
        "when the device has done task",
    ]);
    devbay([&["inspect", &model, "--plan", "--json"][..], &pinned].concat()).expect(0).prints(&[
        "\"kind\": \"copy\"",
        "\"device\": \"cpu:1\"",
        "\"arrival\": true",
    ]);
}

#[test]
fn a_loop_that_data_ends_runs_over_two_devices() {
    let folder = Folder::new();
    let (model, inputs) = (folder.path("until.devbay"), folder.path("in.npz"));
    std::fs::write(&model, UNTIL).unwrap();
    let (model, inputs) = (model.to_str().unwrap(), inputs.to_str().unwrap());
    for form in FORMS {
        let option = format!("cpu.streams={form}");
        let on_two = ["--plugin-option", &option, "--device", "cpu:0", "--pin", "mul=cpu:1"];
        // Conditions are read on an inline device, if there is one.
        let places: &[&str] = match form {
            "async,async" => &["control flow"],
            _ => &["Loop@25 entry", "Loop@25 exit"],
        };
        devbay([&["inspect", model, "--plan"][..], &on_two].concat()).expect(0).prints(places);
        for (n, expected) in [(0i64, "1.00000,"), (1, "2.00000,"), (3, "8.00000,"), (100, "64.00000,")] {
            let x = Tensor::from_elements(&[4, 4], &[1f32; 16]).unwrap();
            let n = Tensor::from_elements(&[], &[n]).unwrap();
            arrays::write_npz(Path::new(inputs), &[("x", &x), ("n", &n)]).unwrap();
            for threads in ["1", "2"] {
                let more = ["--threads", threads, "--input", inputs];
                devbay([&["run", model][..], &on_two, &more].concat()).expect(0).prints(&[expected]);
            }
        }
    }
}

#[test]
fn a_pin_that_would_do_nothing_is_refused() {
    run("inline,inline", &["--pin", "node_Conv_99=cpu:1"])
        .expect(2)
        .says(&["there is no node `node_Conv_99` to be pinned"]);
    run("inline,inline", &["--pin", "node_Conv_3=cpu:7"]).expect(6).says(&["there is no device cpu:7"]);
    run("inline,inline", &["--pin", "node_Conv_3"])
        .expect(2)
        .says(&["pin is NODE=DEVICE, found `node_Conv_3`"]);
}
