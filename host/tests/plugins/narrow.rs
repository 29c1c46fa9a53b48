//! Computing in narrower floats takes less of a device's memory, and gives nearly the same results in the model's own
//! types.

use crate::library::library;
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::tensor::{F32, F64};
use devbay_host::{Model, PlanOptions, Runtime, Session, Tensor};

const N: usize = 256;

fn runtime() -> Runtime {
    let plugins = vec![library("cpu"), library("wgpu")];
    Runtime::builder().threads(1).plugins(plugins).build().expect("a runtime")
}

/// Two products with weights, and a mask that is no number of 16 bits in between.
fn model(dtype: &str) -> Model {
    let row = |i: usize| (0..N).map(move |j| ((i * 7 + j * 3) % 11) as f32 / 64.0 - 0.08);
    let weights: Vec<String> = (0..N).flat_map(row).map(|weight| format!("{weight:?}")).collect();
    let weights = weights.join(", ");
    let text = format!(
        "devbay-program 1\n\nprogram \"layers\"(%x: {dtype}[n,{N}]) {{\n\
         \u{20} %w = const {dtype}[{N},{N}] [{weights}]\n\
         \u{20} %mask = const {dtype}[] [-1000000000.0]\n\
         \u{20} %a = MatMul@13(%x, %w)\n\
         \u{20} %b = Max@13(%a, %mask)\n\
         \u{20} %c = MatMul@13(%b, %w)\n\
         \u{20} %d = Sigmoid@13(%c)\n\
         \u{20} return %d\n}}\n"
    );
    Model::from_program(text::parse(&text).unwrap_or_else(|e| panic!("{e}")))
}

/// Returns a session's result for a batch, and the bytes of its constants on the device.
fn run(session: &Session, x: &Tensor) -> (Tensor, usize) {
    let outputs = session.run(&[("x", x)]).unwrap_or_else(|e| panic!("{e}"));
    let plan = session.plan_for(&[("x", x)]).expect("a plan");
    (outputs[0].clone(), plan.sections().map(|section| section.memory.constants).sum())
}

#[test]
fn constants_of_a_gpu_take_half() {
    let runtime = runtime();
    let Some(device) = &runtime.devices().into_iter().find(|device| device.name() == "wgpu:0") else {
        let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
        assert!(!required.split([',', ' ']).any(|word| word == "vulkan"), "expected a device wgpu:0");
        eprintln!("not run: there is no wgpu:0");
        return;
    };
    let session = |narrow: Option<&str>| {
        let narrow = narrow.map(|text| text.parse().expect("a narrowing"));
        let options = PlanOptions { narrow, ..PlanOptions::default() };
        Session::with_options(&model("f32"), device, options).expect("a session")
    };
    let (wide, narrow) = (session(None), session(Some("f32=f16")));
    for n in [1usize, 3] {
        let elements: Vec<f32> = (0..n * N).map(|i| (i % 9) as f32 / 9.0 - 0.4).collect();
        let x = Tensor::from_elements(&[n, N], &elements).expect("an input");
        let ((expected, all), (found, half)) = (run(&wide, &x), run(&narrow, &x));
        assert_eq!((found.dtype(), found.shape()), (F32, expected.shape()));
        let pairs = found.elements::<f32>().unwrap().iter().zip(expected.elements::<f32>().unwrap());
        let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Three roundings to 11 bits of sums up to about 4.
        assert!(off > 0.0 && off < 0.01, "off by {off}");
        let weights = N * N * 4;
        assert!(all >= weights && half < weights / 2 + 1024, "{half} bytes of {all}");
    }
}

#[test]
fn doubles_become_singles() {
    let runtime = runtime();
    let device = &runtime.devices().into_iter().find(|device| device.name() == "cpu:0").expect("a processor");
    let elements: Vec<f64> = (0..2 * N).map(|i| (i % 9) as f64 / 9.0 - 0.4).collect();
    let x = Tensor::from_elements(&[2, N], &elements).expect("an input");
    let outputs = |narrow: Option<&str>| {
        let narrow = narrow.map(|text| text.parse().expect("a narrowing"));
        let options = PlanOptions { narrow, ..PlanOptions::default() };
        let session = Session::with_options(&model("f64"), device, options).expect("a session");
        run(&session, &x).0
    };
    let (expected, found) = (outputs(None), outputs(Some("f64=f32")));
    assert_eq!(found.dtype(), F64);
    let pairs = found.elements::<f64>().unwrap().iter().zip(expected.elements::<f64>().unwrap());
    let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off > 0.0 && off < 1e-5, "off by {off}");
}
